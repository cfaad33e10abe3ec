"""The first and last offsets of partitions, and the offsets of a timestamp: ListOffsets to all leaders."""

from collections.abc import Collection, Mapping
from typing import Any

from skep.base.errors import ErrorCode, KafkaError
from skep.base.ids import TopicPartition
from skep.client.cluster_client import ClusterClient, Node
from skep.client.errors import Unreachable
from skep.client.retry import RETRIABLE, RETRIABLE_FOR_PARTITION, Retry
from skep.wire.apis import LIST_OFFSETS

LATEST = -1
EARLIEST = -2
READ_COMMITTED = 1
BELIEVED_AFTER_S = 10.0
"""A deposed leader stops serving after half of the brokers' session timeout, 3 s by default."""
_PAUSE_S = 0.1


def list_offsets(
    cluster: ClusterClient, wanted: Mapping[TopicPartition, int], *, committed: bool, timeout_s: float | None = None
) -> dict[TopicPartition, int | None]:
    """Returns the offset of EARLIEST, LATEST or a timestamp in ms; None when no record is at or after the timestamp.

    With ``committed``, LATEST is the last stable offset. Raises KafkaError for a missing topic, and TimedOut for a
    missing partition or one whose leader does not respond.
    """
    retry = Retry(cluster, "offsets", timeout_s)
    found: dict[TopicPartition, int | None] = {}
    left = dict(wanted)
    while left:
        try:
            leaders = cluster.leaders(sorted({topic for topic, _ in left}))
            missing = [one for one in left if one not in leaders]
            reasons = [f"partition {one} has no leader" for one in missing]
            for node in sorted({leaders[one] for one in left if one in leaders}):
                here = {one: time for one, time in left.items() if leaders.get(one) == node}
                for one, row in _ask(cluster, node, here, committed).items():
                    if row.error_code is ErrorCode.none:
                        found[one] = row.offset if row.offset >= 0 else None
                        del left[one]
                        retry.progress()
                    else:
                        reasons.append(_refusal(node, one, row.error_code))
        except Unreachable as error:
            reasons = [str(error)]
        except KafkaError as error:
            # Such as LEADER_NOT_AVAILABLE of a topic that is being created.
            if error.code not in RETRIABLE:
                raise
            reasons = [error.detail]
        if left:
            cluster.switch_metadata_broker()
            retry.wait("; ".join(reasons))
    return {one: found[one] for one in wanted}


def list_ends(
    cluster: ClusterClient, at_least: Mapping[TopicPartition, int], *, committed: bool
) -> dict[TopicPartition, int]:
    """Returns the end of each partition, which was at ``at_least`` or later before.

    A lower end is believed only after ``BELIEVED_AFTER_S``. A log that was truncated has one, but so has a deposed
    leader that does not know of its successor yet.
    """
    deadline = cluster.clock.monotonic() + min(BELIEVED_AFTER_S, cluster.timeout_s)
    ends: dict[TopicPartition, int] = {}
    left: Collection[TopicPartition] = at_least
    while True:
        found = list_offsets(cluster, dict.fromkeys(left, LATEST), committed=committed)
        ends |= {one: offset or 0 for one, offset in found.items()}
        left = [one for one in left if ends[one] < at_least[one]]
        if not left or cluster.clock.monotonic() >= deadline:
            return {one: ends[one] for one in at_least}
        cluster.switch_metadata_broker()
        cluster.sleep(_PAUSE_S)


def _ask(cluster: ClusterClient, node: Node, wanted: Mapping[TopicPartition, int], committed: bool) -> dict[Any, Any]:
    topics: dict[str, list[dict[str, int]]] = {}
    for (topic, partition), timestamp in wanted.items():
        entry = {"partition_index": partition, "current_leader_epoch": -1, "timestamp": timestamp}
        topics.setdefault(topic, []).append(entry)
    body = {
        "replica_id": -1,
        "isolation_level": READ_COMMITTED if committed else 0,
        "topics": [{"name": topic, "partitions": partitions} for topic, partitions in topics.items()],
    }
    response = cluster.ask_node(node, LIST_OFFSETS, body)
    return {
        TopicPartition(topic.name, one.partition_index): one for topic in response.topics for one in topic.partitions
    }


def _refusal(node: Node, one: TopicPartition, code: ErrorCode) -> str:
    """Returns the reason for another attempt; raises KafkaError for a code that is not retriable."""
    text = f"the broker at {node.host}:{node.port} returned {code.name} for partition {one}"
    if code not in RETRIABLE_FOR_PARTITION:
        raise KafkaError(code, text)
    return text
