"""What is asked of a cluster as a whole is asked in parts, and how far it is gets told."""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from skep.base.errors import ErrorCode
from skep.base.ids import TopicPartition
from skep.cli.cluster import cluster_admin
from skep.wire.apis import ELECT_LEADERS, Api
from tests.manual_clock import ManualClock


class FakeCluster:
    """One broker, which elects all but the partitions that have a code of their own; ``asked`` counts each request."""

    timeout_s = request_timeout_s = 30.0
    clock = ManualClock()
    sleep = staticmethod(lambda seconds: None)

    def __init__(self, codes: Mapping[TopicPartition, ErrorCode]) -> None:
        self._codes = codes
        self.asked: list[int] = []

    def metadata(self, topics: object) -> Any:
        return SimpleNamespace(controller_id=1)

    def nodes(self) -> list[Any]:
        return [SimpleNamespace(node_id=1)]

    def ask_node(self, node: object, api: Api, body: Mapping[str, Any]) -> Any:
        assert (api, body["election_type"]) == (ELECT_LEADERS, cluster_admin.PREFERRED)
        self.asked.append(sum(len(one["partitions"]) for one in body["topic_partitions"]))
        results = [
            SimpleNamespace(
                topic=one["topic"],
                partition_result=[self._result(one["topic"], number) for number in one["partitions"]],
            )
            for one in body["topic_partitions"]
        ]
        return SimpleNamespace(error_code=ErrorCode.none, replica_election_results=results)

    def _result(self, topic: str, number: int) -> Any:
        code = self._codes.get(TopicPartition(topic, number), ErrorCode.none)
        return SimpleNamespace(partition_id=number, error_code=code, error_message=None)


def test_an_election_is_asked_for_in_parts_and_tells_after_each_how_many_are_decided() -> None:
    away, right = TopicPartition("orders", 3), TopicPartition("payments", 5)
    cluster = FakeCluster(
        {away: ErrorCode.preferred_leader_not_available, right: ErrorCode.election_not_needed},
    )
    partitions = [TopicPartition(topic, number) for topic in ("orders", "payments") for number in range(1_250)]
    told: list[tuple[int, int]] = []
    elected, refused = cluster_admin.elect(
        cluster,  # type: ignore[arg-type]
        cluster_admin.PREFERRED,
        partitions,
        lambda count: told.append((len(cluster.asked), count)),
    )
    assert cluster.asked == [1_000, 1_000, 500]
    assert told == [(1, 1_000), (2, 1_000), (3, 500)], "after each request"
    assert set(elected) == set(partitions) - {away, right}
    assert [(one.where, one.code) for one in refused] == [(away, ErrorCode.preferred_leader_not_available)]
