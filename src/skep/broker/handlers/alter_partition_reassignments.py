"""AlterPartitionReassignments (API 45), versions 0 to 1.

Behaviour
    Each partition is to be moved to the brokers given, the first of them to lead in the end; null brings a move that is
    under way back. A topic is written once, with all of its partitions that can be. The new replicas copy while the old
    ones serve, and the old ones go when all the new ones are in sync; where nobody has to copy anything the move is
    done when the answer is sent. A move of a partition that is being moved replaces the first.

    A broker that is not running may be named if it is a replica already.

Refusals, per partition, in order
    UNKNOWN_TOPIC_OR_PARTITION; NO_REASSIGNMENT_IN_PROGRESS: nothing to bring back; INVALID_REPLICA_ASSIGNMENT: no
    brokers, one that is not there, or one twice; INVALID_REPLICATION_FACTOR: more or fewer replicas although version 1
    says that their number stays (KIP-860); INVALID_REPLICA_ASSIGNMENT: everybody in sync is one that would be dropped,
    and the topic has no ``unclean.leader.election.enable``.

Left out
    ``timeout`` is read and ignored: nothing but the metadata store is waited for.
"""

from dataclasses import replace
from typing import Any

from skep.base.errors import ErrorCode, KafkaError
from skep.broker.refusals import ANSWERABLE, code_of, message_of
from skep.broker.request import Request
from skep.broker.services import Services
from skep.broker.topics.topic_creation import alive_brokers, check_assignment
from skep.controller.decisions import is_unclean
from skep.controller.elections import Liveness
from skep.controller.reassignment import begun, cancelled
from skep.metadata.model import PartitionRecord, TopicRecord
from skep.wire.codec import Body

_Outcome = tuple[ErrorCode, str | None]
_DONE: _Outcome = (ErrorCode.none, None)


async def handle(services: Services, request: Request) -> Body:
    may_change_factor = getattr(request.body, "allow_replication_factor_change", True)
    responses = []
    for wanted in request.body.topics:
        outcomes: list[_Outcome] = []

        def change(topic: TopicRecord, wanted: Any = wanted, outcomes: list[_Outcome] = outcomes) -> TopicRecord:
            # Asked again when another writer was first: what was found out before does not count any more.
            outcomes.clear()
            partitions = list(topic.partitions)
            for one in wanted.partitions:
                outcomes.append(_change_one(services, topic, partitions, one, may_change_factor))
            return replace(topic, partitions=tuple(partitions))

        try:
            await services.catalog.change_topic(wanted.name, change)
        except ANSWERABLE as error:
            outcomes = [(code_of(error), message_of(error))] * len(wanted.partitions)
        responses.append(_response(wanted, outcomes))
    return {
        "allow_replication_factor_change": may_change_factor,
        "error_code": ErrorCode.none,
        "error_message": None,
        "responses": responses,
    }


def _change_one(
    services: Services, topic: TopicRecord, partitions: list[PartitionRecord], wanted: Any, may_change_factor: bool
) -> _Outcome:
    """Puts the changed partition into ``partitions``."""
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
                f"The replication factor is changed from {len(partition.target)} to {len(wanted.replicas)}",
            )
        partitions[index] = begun(partition, wanted.replicas, brokers, unclean=unclean)
    except KafkaError as error:
        return error.code, message_of(error)
    return _DONE


def _response(wanted: Any, outcomes: list[_Outcome]) -> dict[str, Any]:
    return {
        "name": wanted.name,
        "partitions": [
            {"partition_index": one.partition_index, "error_code": code, "error_message": message}
            for one, (code, message) in zip(wanted.partitions, outcomes, strict=True)
        ],
    }


def refuse(request: Request, code: ErrorCode) -> Body:
    return {"error_code": code, "error_message": None, "responses": []}
