"""TxnOffsetCommit (API 28), versions 0 to 5.

Behaviour
    Appends offsets that take effect when the producer's transaction commits, and never if it aborts. The group's
    partition has to be a part of the transaction (AddOffsetsToTxn), which the transaction's coordinator verifies, also
    on another broker.

Versions
    1 changes nothing here (quotas).
    2: ``committed_leader_epoch`` (KIP-320), and COORDINATOR_LOAD_IN_PROGRESS (KAFKA-7296).
    3 is flexible; the member that consumed the records, which is refused if it is no longer in the group (KIP-447).
    4: TRANSACTION_ABORTABLE (KIP-890).
    5: transactions v2 (KIP-890). The group's partition is added to the transaction, without AddOffsetsToTxn.

Refusals of all partitions, in order
    INVALID_GROUP_ID; no coordinator here (below version 2 COORDINATOR_NOT_AVAILABLE for one that is loading, because
    those clients do not know the other code); INVALID_PRODUCER_ID_MAPPING, INVALID_PRODUCER_EPOCH, INVALID_TXN_STATE
    (TRANSACTION_ABORTABLE from version 4 on) when the producer, or the group, is not in the transaction;
    UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID, ILLEGAL_GENERATION (also for an old member epoch).
Refusals per partition
    UNKNOWN_TOPIC_OR_PARTITION; OFFSET_METADATA_TOO_LARGE; POLICY_VIOLATION as in OffsetCommit.
"""

import asyncio
from collections.abc import Awaitable
from typing import TYPE_CHECKING

from skep.base.errors import ErrorCode, KafkaError
from skep.broker.handlers import offset_commit
from skep.broker.request import Request
from skep.broker.services import Services
from skep.coordination.groups.offsets.offset_operations import AnyOffset, Codes, Committer
from skep.coordination.shard import ProducerStamp
from skep.coordination.transactions.verification_guards import VerificationGuard
from skep.coordination.transactions.verifier import VerificationRequired
from skep.wire.codec import Body

if TYPE_CHECKING:
    from skep.wire.entities.request_types import TxnOffsetCommitRequest

KNOWS_LOADING = 2
KNOWS_TRANSACTION_ABORTABLE = 4
ADDS_PARTITION = 5
_NO_GENERATION = -1


def handle(services: Services, request: "Request[TxnOffsetCommitRequest]") -> Body | Awaitable[Body]:
    if offset_commit.is_large(request.body.topics):
        services.groups.check_id(request.body.group_id, may_be_empty=True)
        return offset_commit.commit_in_pieces(
            services,
            request,
            lambda offsets: _commit(services, request, offsets),
            code_for_client=lambda code: _code_for_client(request, code),
        )
    refused, offsets = offset_commit.wanted_offsets(services, request)
    if offset_commit.is_refused(refused, offsets):
        return offset_commit.response(request, refused, [])
    codes = _commit(services, request, offsets)
    if isinstance(codes, list):
        return offset_commit.response(request, refused, codes)
    return _response_later(request, refused, codes)


def _commit(
    services: Services, request: "Request[TxnOffsetCommitRequest]", offsets: list[AnyOffset]
) -> Codes | Awaitable[Codes]:
    """Verifies the transaction again for each piece of a large request: it may have ended between two of them."""
    producer = ProducerStamp(request.body.producer_id, request.body.producer_epoch)
    # Before the verification, which may send a request to another broker.
    services.groups.check_coordinator(request.body.group_id)
    try:
        _verify(services, request, producer)
    except VerificationRequired as asked:
        return asyncio.ensure_future(_append_verified(services, request, producer, offsets, asked.guard))
    return _append(services, request, producer, offsets)


def _append(
    services: Services, request: "Request[TxnOffsetCommitRequest]", producer: ProducerStamp, offsets: list[AnyOffset]
) -> Codes | Awaitable[Codes]:
    body = request.body
    committer = Committer(
        getattr(body, "member_id", ""),
        getattr(body, "group_instance_id", None),
        getattr(body, "generation_id", _NO_GENERATION),
    )
    return services.groups.commit_transactional_offsets(body.group_id, committer, producer, offsets, request.version)


async def _append_verified(
    services: Services,
    request: "Request[TxnOffsetCommitRequest]",
    producer: ProducerStamp,
    offsets: list[AnyOffset],
    guard: VerificationGuard,
) -> Codes:
    async with services.transactions.verifier.in_turn(request.body.transactional_id, [guard]):
        try:
            guard.check(services.replicas.partition(*guard.partition).leader_epoch)
        except KafkaError as error:
            raise _for_group(error) from None
        codes = _append(services, request, producer, offsets)
    return await codes if isinstance(codes, Awaitable) else codes


def _verify(services: Services, request: "Request[TxnOffsetCommitRequest]", producer: ProducerStamp) -> None:
    try:
        verifier, place = services.transactions.verifier, services.transactions.offsets_of(request.body.group_id)
        partition, adds = services.replicas.partition(*place), request.version >= ADDS_PARTITION
        is_waiting = verifier.guards.is_waiting(place, producer.producer_id)
        if adds and not is_waiting and partition.log.producers.is_in_transaction(*producer):
            return  # An epoch of v2 belongs to one transaction, so the partition was added to this one.
        verifier.verify(request.body.transactional_id, producer, place, partition.leader_epoch, adds=adds)
    except KafkaError as error:
        raise _for_group(error) from None


def _for_group(error: KafkaError) -> KafkaError:
    """Replaces the codes of a partition by those of a coordinator."""
    if error.code is ErrorCode.not_enough_replicas:
        return KafkaError(ErrorCode.coordinator_not_available, str(error))
    if error.code is ErrorCode.not_leader_or_follower:
        return KafkaError(ErrorCode.not_coordinator, str(error))
    return error


async def _response_later(
    request: "Request[TxnOffsetCommitRequest]", refused: list[ErrorCode], codes: Awaitable[Codes]
) -> Body:
    return offset_commit.response(request, refused, await codes)


def _code_for_client(request: "Request[TxnOffsetCommitRequest]", code: ErrorCode) -> ErrorCode:
    """Replaces a code that clients of the version do not know."""
    if code is ErrorCode.coordinator_load_in_progress and request.version < KNOWS_LOADING:
        return ErrorCode.coordinator_not_available
    if code is ErrorCode.invalid_txn_state and request.version >= KNOWS_TRANSACTION_ABORTABLE:
        return ErrorCode.transaction_abortable
    return code


def refuse(request: "Request[TxnOffsetCommitRequest]", code: ErrorCode) -> Body:
    return offset_commit.refuse(request, _code_for_client(request, code))
