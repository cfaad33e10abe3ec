"""TxnOffsetCommit (API 28), versions 0 to 4.

Behaviour
    Offsets that count when the producer's transaction commits, and are as if never sent when it aborts. The group's
    partition has to be a part of the transaction (AddOffsetsToTxn), whose coordinator is asked, wherever it is. From
    version 3 on the member that has read the
    records is named, and refused when it is no longer in the group (KIP-447).

Refusals of all partitions, in order
    INVALID_GROUP_ID; no coordinator here (COORDINATOR_NOT_AVAILABLE for one that is loading, below version 2: clients
    of that time do not know the other); INVALID_PRODUCER_ID_MAPPING, INVALID_PRODUCER_EPOCH, INVALID_TXN_STATE
    (TRANSACTION_ABORTABLE from version 4 on) when the producer, or the group, is not in the transaction;
    UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID, ILLEGAL_GENERATION (also for an old member epoch).
Refusals per partition
    UNKNOWN_TOPIC_OR_PARTITION; OFFSET_METADATA_TOO_LARGE; POLICY_VIOLATION as in OffsetCommit.
"""

import asyncio
from collections.abc import Awaitable

from skep.base.errors import ErrorCode, KafkaError
from skep.broker.group_ids import check_group_id
from skep.broker.handlers import offset_commit
from skep.broker.request import Request
from skep.broker.services import Services
from skep.coordination.groups.offsets import offset_operations as committing
from skep.coordination.groups.offsets.offset_operations import AnyOffset, Codes, Committer
from skep.coordination.shard import ProducerStamp
from skep.coordination.transactions.verification_guards import Guard
from skep.coordination.transactions.verifier import AskElsewhere
from skep.wire.codec import Body

KNOWS_LOADING = 2
KNOWS_TRANSACTION_ABORTABLE = 4
_NO_GENERATION = -1


def handle(services: Services, request: Request) -> Body | Awaitable[Body]:
    check_group_id(services, request.body.group_id, may_be_empty=True)
    if offset_commit.is_large(request.body.topics):
        return offset_commit.commit_in_pieces(
            services,
            request,
            lambda offsets: _commit(services, request, offsets),
            has_topic_id=False,
            told=lambda code: _told(request, code),
        )
    known, offsets = offset_commit.wanted_offsets(services, request.body.topics, has_topic_id=False)
    codes = _commit(services, request, offsets)
    if isinstance(codes, list):
        return offset_commit.answer(request, known, codes)
    return _answer_later(request, known, codes)


def _commit(services: Services, request: Request, offsets: list[AnyOffset]) -> Codes | Awaitable[Codes]:
    """Verified again for each piece of a large request: between two of them the transaction may have ended."""
    producer = ProducerStamp(request.body.producer_id, request.body.producer_epoch)
    # That the group is here comes first: otherwise another broker would be asked for nothing.
    services.groups.shard_of(request.body.group_id)
    try:
        _verify(services, request, producer)
    except AskElsewhere as asked:
        return asyncio.ensure_future(_append_verified(services, request, producer, offsets, asked.guard))
    return _append(services, request, producer, offsets)


def _append(
    services: Services, request: Request, producer: ProducerStamp, offsets: list[AnyOffset]
) -> Codes | Awaitable[Codes]:
    body = request.body
    committer = Committer(
        getattr(body, "member_id", ""),
        getattr(body, "group_instance_id", None),
        getattr(body, "generation_id", _NO_GENERATION),
    )
    codes: Codes | Awaitable[Codes] = services.groups.submit(
        body.group_id,
        lambda shard: committing.commit_transactional(
            shard, body.group_id, committer, producer, offsets, request.version
        ),
    )
    return codes


async def _append_verified(
    services: Services, request: Request, producer: ProducerStamp, offsets: list[AnyOffset], guard: Guard
) -> Codes:
    async with services.transactions.verifier.in_turn(request.body.transactional_id, [guard]):
        try:
            guard.check(services.replicas.partition(*guard.partition).leader_epoch)
        except KafkaError as error:
            raise _for_group(error) from None
        codes = _append(services, request, producer, offsets)
    return await codes if isinstance(codes, Awaitable) else codes


def _verify(services: Services, request: Request, producer: ProducerStamp) -> None:
    try:
        place = services.transactions.offsets_of(request.body.group_id)
        epoch = services.replicas.partition(*place).leader_epoch
        services.transactions.verifier.verify(request.body.transactional_id, producer, place, epoch)
    except KafkaError as error:
        raise _for_group(error) from None


def _for_group(error: KafkaError) -> KafkaError:
    """What a producer is told, for one that speaks with a coordinator."""
    if error.code is ErrorCode.not_enough_replicas:
        return KafkaError(ErrorCode.coordinator_not_available, str(error))
    if error.code is ErrorCode.not_leader_or_follower:
        return KafkaError(ErrorCode.not_coordinator, str(error))
    return error


async def _answer_later(request: Request, known: list[bool], codes: Awaitable[Codes]) -> Body:
    return offset_commit.answer(request, known, await codes)


def _told(request: Request, code: ErrorCode) -> ErrorCode:
    """The code that clients of the version know."""
    if code is ErrorCode.coordinator_load_in_progress and request.version < KNOWS_LOADING:
        return ErrorCode.coordinator_not_available
    if code is ErrorCode.invalid_txn_state and request.version >= KNOWS_TRANSACTION_ABORTABLE:
        return ErrorCode.transaction_abortable
    return code


def refuse(request: Request, code: ErrorCode) -> Body:
    return offset_commit.refuse(request, _told(request, code))
