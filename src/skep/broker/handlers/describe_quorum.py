"""DescribeQuorum (API 55), versions 0 to 2.

Behaviour
    Kafka returns the state of the Raft quorum behind its metadata. Skep keeps its metadata in a store and has no such
    log, but a controller: it is returned as the leader, with its epoch, and every live broker as a voter, because each
    may become the controller. All offsets are -1, unknown.

Versions
    0 is flexible.
    1: when a voter last fetched (KIP-836), always -1.
    2: error messages, directory ids (none), and the addresses of the voters (KIP-853).

Refusals
    NOT_LEADER_OR_FOLLOWER while there is no controller. Per partition: UNKNOWN_TOPIC_OR_PARTITION for all but
    ``__cluster_metadata``, partition 0.
"""

from typing import TYPE_CHECKING, Any

from skep.base.errors import ErrorCode
from skep.broker.request import Request
from skep.broker.services import Services
from skep.broker.topics.current_leaders import NO_CONTROLLER, brokers_at, controller_id
from skep.metadata.model import BrokerRecord
from skep.wire.codec import Body
from skep.wire.lazy_array import LazyArray

if TYPE_CHECKING:
    from skep.wire.entities.request_types import DescribeQuorumRequest

CLUSTER_METADATA = "__cluster_metadata"
LISTENER = "PLAINTEXT"
UNKNOWN = -1


def handle(services: Services, request: "Request[DescribeQuorumRequest]") -> Body:
    leader = controller_id(services)
    if leader == NO_CONTROLLER:
        return {**refuse(request, ErrorCode.not_leader_or_follower), "error_message": "There is no controller now."}
    controller = services.catalog.image.controller
    listener = request.listener_name
    brokers = list(brokers_at(services, listener).values())
    quorum = {
        "partition_index": 0,
        "error_code": ErrorCode.none,
        "leader_id": leader,
        "leader_epoch": controller.epoch if controller is not None else 0,
        "high_watermark": UNKNOWN,
        "current_voters": [{"replica_id": broker.id, "log_end_offset": UNKNOWN} for broker in brokers],
    }

    def partition(topic: str, index: int) -> dict[str, Any]:
        return quorum if (topic, index) == (CLUSTER_METADATA, 0) else _unknown(index)

    def described(topic: "DescribeQuorumRequest.TopicData") -> dict[str, Any]:
        indexes = LazyArray(topic.partitions, lambda asked: partition(topic.topic_name, asked.partition_index))
        return {"topic_name": topic.topic_name, "partitions": indexes}

    return {
        "error_code": ErrorCode.none,
        "topics": LazyArray(request.body.topics, described),
        "nodes": [_node(broker, listener or LISTENER) for broker in brokers],
    }


def _unknown(index: int) -> dict[str, Any]:
    return {
        "partition_index": index,
        "error_code": ErrorCode.unknown_topic_or_partition,
        "error_message": f"Only partition 0 of {CLUSTER_METADATA} has a quorum.",
        "leader_id": NO_CONTROLLER,
        "leader_epoch": UNKNOWN,
        "high_watermark": UNKNOWN,
    }


def _node(broker: BrokerRecord, listener: str) -> dict[str, Any]:
    return {"node_id": broker.id, "listeners": [{"name": listener, "host": broker.host, "port": broker.port}]}


def refuse(request: "Request[DescribeQuorumRequest]", code: ErrorCode) -> Body:
    return {"error_code": code, "topics": [], "nodes": []}
