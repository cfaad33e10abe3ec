"""AlterPartitionReassignments (API 45), versions 0 to 1.

Behaviour
    Begins to move each partition to the given brokers; the first of them leads in the end. Null cancels a move. Each
    topic is written once, with all of its partitions that can be changed. The new replicas copy while the old ones
    serve; the old ones are removed when all new ones are in sync. Where no broker has to copy anything, the move is
    complete when the response is sent. A new move of a partition replaces the one that is in progress.

    A broker that is not running may be named if it is already a replica.

Versions
    1: ``allow_replication_factor_change``, in the request and in the response (KIP-860).

Refusals, per partition, in order
    UNKNOWN_TOPIC_OR_PARTITION; NO_REASSIGNMENT_IN_PROGRESS: there is no move to cancel; INVALID_REPLICA_ASSIGNMENT: no
    brokers, an unknown broker, or one twice; INVALID_REPLICATION_FACTOR: the number of replicas would change although
    version 1 forbids it; INVALID_REPLICA_ASSIGNMENT: all in-sync replicas would be removed, and the topic does not have
    ``unclean.leader.election.enable``.

Left out
    ``timeout`` is read and ignored: the request waits for the metadata store only.
"""

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from skep.base.errors import ErrorCode, KafkaError
from skep.broker.refusals import RESPONSE_ERRORS, code_of, message_of
from skep.broker.request import Request
from skep.broker.services import Services
from skep.broker.topics.topic_creation import alive_brokers, check_assignment
from skep.controller.decisions import is_unclean
from skep.controller.elections import Liveness
from skep.controller.reassignment import begun, cancelled
from skep.metadata.model import PartitionRecord, TopicRecord
from skep.wire.codec import Body

if TYPE_CHECKING:
    from skep.wire.entities.request_types import AlterPartitionReassignmentsRequest

_Outcome = tuple[ErrorCode, str | None]
_DONE: _Outcome = (ErrorCode.none, None)


async def handle(services: Services, request: "Request[AlterPartitionReassignmentsRequest]") -> Body:
    may_change_factor = getattr(request.body, "allow_replication_factor_change", True)
    responses = []
    for wanted in request.body.topics:
        outcomes: list[_Outcome] = []

        def change(
            topic: TopicRecord,
            wanted: "AlterPartitionReassignmentsRequest.ReassignableTopic" = wanted,
            outcomes: list[_Outcome] = outcomes,
        ) -> TopicRecord:
            # Called again when another writer was first: the earlier outcomes no longer count.
            outcomes.clear()
            partitions = list(topic.partitions)
            for one in wanted.partitions:
                outcomes.append(_change_one(services, topic, partitions, one, may_change_factor))
            return replace(topic, partitions=tuple(partitions))

        try:
            await services.catalog.change_topic(wanted.name, change)
        except RESPONSE_ERRORS as error:
            outcomes = [(code_of(error), message_of(error))] * len(wanted.partitions)
        responses.append(_response(wanted, outcomes))
    return {
        "allow_replication_factor_change": may_change_factor,
        "error_code": ErrorCode.none,
        "error_message": None,
        "responses": responses,
    }


def _change_one(
    services: Services,
    topic: TopicRecord,
    partitions: list[PartitionRecord],
    wanted: "AlterPartitionReassignmentsRequest.ReassignablePartition",
    may_change_factor: bool,
) -> _Outcome:
    """Changes one partition in ``partitions``."""
    index = wanted.partition_index
    try:
        if not 0 <= index < len(partitions):
            raise KafkaError(ErrorCode.unknown_topic_or_partition, f"Unable to find partition {topic.name}:{index}.")
        default = services.config.topic_defaults.unclean_leader_election_enable
        partition, unclean = partitions[index], is_unclean(topic, default)
        brokers = Liveness.of(alive_brokers(services))
        if wanted.replicas is None:
            partitions[index] = cancelled(partition, brokers, unclean=unclean)
            return _DONE
        check_assignment(services, wanted.replicas, None, held_by=partition.replicas)
        if not may_change_factor and len(wanted.replicas) != len(partition.target):
            raise KafkaError(
                ErrorCode.invalid_replication_factor,
                f"The replication factor would change from {len(partition.target)} to {len(wanted.replicas)}, which the"
                " request forbids.",
            )
        partitions[index] = begun(partition, wanted.replicas, brokers, unclean=unclean)
    except KafkaError as error:
        return error.code, message_of(error)
    return _DONE


def _response(
    wanted: "AlterPartitionReassignmentsRequest.ReassignableTopic", outcomes: list[_Outcome]
) -> dict[str, Any]:
    return {
        "name": wanted.name,
        "partitions": [
            {"partition_index": one.partition_index, "error_code": code, "error_message": message}
            for one, (code, message) in zip(wanted.partitions, outcomes, strict=True)
        ],
    }


def refuse(request: "Request[AlterPartitionReassignmentsRequest]", code: ErrorCode) -> Body:
    return {"error_code": code, "error_message": None, "responses": []}
