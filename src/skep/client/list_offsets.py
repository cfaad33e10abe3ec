"""Where a partition begins and ends, and where a moment lies in it: ListOffsets, asked of every leader there is."""

from collections.abc import Collection, Mapping
from typing import Any

from skep.base.errors import ErrorCode, KafkaError
from skep.client.cluster_client import PAUSE_S, ClusterClient, Node
from skep.client.errors import Unreachable
from skep.client.retry import Patience
from skep.wire.apis import LIST_OFFSETS

LATEST = -1
EARLIEST = -2
READ_COMMITTED = 1
BELIEVED_AFTER_S = 10.0
"""A deposed leader stops answering after half of the brokers' session timeout, 3 s by default."""
ASK_AGAIN = frozenset(
    {
        ErrorCode.not_leader_or_follower,
        ErrorCode.leader_not_available,
        ErrorCode.replica_not_available,
        ErrorCode.offset_not_available,
        ErrorCode.unknown_leader_epoch,
        ErrorCode.fenced_leader_epoch,
        ErrorCode.kafka_storage_error,
        ErrorCode.request_timed_out,
        # Of a partition that the metadata has: its leader has not heard of it yet.
        ErrorCode.unknown_topic_or_partition,
    }
)

TopicPartition = tuple[str, int]


def list_offsets(
    cluster: ClusterClient, wanted: Mapping[TopicPartition, int], *, committed: bool, timeout_s: float | None = None
) -> dict[TopicPartition, int | None]:
    """For EARLIEST, LATEST or a time in ms, the offset; None when no record is at or after that time.

    With ``committed``, LATEST is the last stable offset. KafkaError for a topic that is not there; TimedOut for a
    partition that is not there, or whose leader does not answer.
    """
    patience = Patience(cluster, cluster.timeout_s if timeout_s is None else timeout_s, "offsets")
    found: dict[TopicPartition, int | None] = {}
    left = dict(wanted)
    while left:
        try:
            leaders = cluster.leaders(sorted({topic for topic, _ in left}))
            missing = [one for one in left if one not in leaders]
            reasons = [f"partition {topic}-{partition} has no leader" for topic, partition in missing]
            for node in sorted({leaders[one] for one in left if one in leaders}):
                here = {one: time for one, time in left.items() if leaders.get(one) == node}
                for one, answer in _ask(cluster, node, here, committed).items():
                    if answer.error_code is ErrorCode.none:
                        found[one] = answer.offset if answer.offset >= 0 else None
                        del left[one]
                        patience.progress()
                    else:
                        reasons.append(_refusal(node, one, answer.error_code))
        except Unreachable as error:
            reasons = [str(error)]
        except KafkaError as error:
            # Of a topic that is being made.
            if error.code is not ErrorCode.leader_not_available:
                raise
            reasons = [error.detail]
        if left:
            cluster.look_elsewhere()
            patience.wait("; ".join(reasons))
    return {one: found[one] for one in wanted}


def list_ends(
    cluster: ClusterClient, at_least: Mapping[TopicPartition, int], *, committed: bool
) -> dict[TopicPartition, int]:
    """The end of each partition, of which it is known that it was at ``at_least`` once.

    One that lies below is believed after ``BELIEVED_AFTER_S`` only. A log that was cut has it, but so has a leader that
    was succeeded and does not know it yet.
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
        cluster.look_elsewhere()
        cluster.sleep(PAUSE_S)


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
    answer = cluster.ask_node(node, LIST_OFFSETS, body)
    return {(topic.name, one.partition_index): one for topic in answer.topics for one in topic.partitions}


def _refusal(node: Node, one: TopicPartition, code: ErrorCode) -> str:
    """Why to ask again; KafkaError when there is no use."""
    text = f"the broker at {node.host}:{node.port} answered {code.name} for partition {one[0]}-{one[1]}"
    if code not in ASK_AGAIN:
        raise KafkaError(code, text)
    return text
