"""Offsets asked of several leaders, some of which have moved or do not answer."""

from types import SimpleNamespace
from typing import Any

import pytest

from skep.base.errors import ErrorCode, KafkaError
from skep.base.ids import TopicPartition
from skep.client.cluster_client import ClusterClient, Node
from skep.client.errors import TimedOut, Unreachable
from skep.client.list_offsets import BELIEVED_AFTER_S, EARLIEST, LATEST, list_ends, list_offsets
from skep.wire.apis import Api
from skep.wire.codec import Body
from tests.manual_clock import ManualClock

ONE, TWO = Node(1, "b1", 9092), Node(2, "b2", 9092)
HERE, THERE = TopicPartition("t", 0), TopicPartition("t", 1)


class Leaders(ClusterClient):
    """``where`` says round by round who leads; who is asked for what they do not lead answers NOT_LEADER."""

    def __init__(
        self, *where: dict[Any, Node], away: Node | None = None, offsets: dict[Any, int] | None = None
    ) -> None:
        self.manual = ManualClock()
        super().__init__("b1", timeout_s=10, clock=self.manual, sleep=lambda s: self.manual.advance_ms(round(s * 1000)))
        self.where = list(where)
        self.truth = where[-1]
        self.away = away
        self.offsets = offsets or {HERE: 100, THERE: 200}
        self.asked: list[tuple[Node, list[Any]]] = []

    def leaders(self, topics: Any) -> dict[tuple[str, int], Node]:
        return self.where.pop(0) if len(self.where) > 1 else self.where[0]

    def ask_node(self, node: Node, api: Api, body: Body) -> Any:
        if node == self.away:
            raise Unreachable(f"no broker answers at {node.host}:{node.port} (Connection refused)")
        wanted = [(topic["name"], one["partition_index"]) for topic in body["topics"] for one in topic["partitions"]]
        self.asked.append((node, wanted))
        rows = [
            SimpleNamespace(
                partition_index=key[1],
                error_code=ErrorCode.none if self.truth[key] == node else ErrorCode.not_leader_or_follower,
                offset=self.offsets[key],
            )
            for key in wanted
        ]
        return SimpleNamespace(topics=[SimpleNamespace(name="t", partitions=rows)])


def test_each_leader_is_asked_once_for_all_that_it_leads() -> None:
    cluster = Leaders({HERE: ONE, THERE: TWO})
    assert list_offsets(cluster, {HERE: LATEST, THERE: EARLIEST}, committed=True) == {HERE: 100, THERE: 200}
    assert cluster.asked == [(ONE, [HERE]), (TWO, [THERE])]


def test_only_what_has_moved_is_asked_again() -> None:
    cluster = Leaders({HERE: ONE, THERE: ONE}, {HERE: ONE, THERE: TWO})
    assert list_offsets(cluster, {HERE: LATEST, THERE: LATEST}, committed=True) == {HERE: 100, THERE: 200}
    assert cluster.asked == [(ONE, [HERE, THERE]), (TWO, [THERE])]


def test_a_moment_after_the_last_record_is_none() -> None:
    cluster = Leaders({HERE: ONE}, offsets={HERE: -1})
    assert list_offsets(cluster, {HERE: 1_700_000_000_000}, committed=True) == {HERE: None}


def test_a_leader_that_stays_away_is_named_when_the_time_is_over() -> None:
    with pytest.raises(TimedOut, match="no broker answers at b2:9092"):
        list_offsets(Leaders({HERE: TWO}, away=TWO), {HERE: LATEST}, committed=True)


def test_a_partition_without_leader_is_named_when_the_time_is_over() -> None:
    with pytest.raises(TimedOut, match="partition t-1 has no leader"):
        list_offsets(Leaders({HERE: ONE}), {HERE: LATEST, THERE: LATEST}, committed=True)


def test_a_refusal_that_does_not_pass_is_raised_at_once() -> None:
    class Forbidding(Leaders):
        def ask_node(self, node: Node, api: Api, body: Body) -> Any:
            response = super().ask_node(node, api, body)
            response.topics[0].partitions[0].error_code = ErrorCode.topic_authorization_failed
            return response

    cluster = Forbidding({HERE: ONE})
    with pytest.raises(KafkaError, match="b1:9092 returned topic_authorization_failed for partition t-0"):
        list_offsets(cluster, {HERE: LATEST}, committed=True)
    assert len(cluster.asked) == 1


def test_an_end_below_what_there_was_is_asked_for_again_and_only_that() -> None:
    cluster = Leaders({HERE: ONE, THERE: ONE})

    def sleep(seconds: float) -> None:
        cluster.manual.advance_ms(round(seconds * 1000))
        if len(cluster.asked) == 3:
            cluster.offsets[THERE] = 300

    cluster.sleep = sleep
    assert list_ends(cluster, {HERE: 100, THERE: 250}, committed=True) == {HERE: 100, THERE: 300}
    assert cluster.asked == [(ONE, [HERE, THERE]), *[(ONE, [THERE])] * 3]


def test_an_end_below_what_there_was_is_believed_after_a_while() -> None:
    cluster = Leaders({HERE: ONE})
    assert list_ends(cluster, {HERE: 101}, committed=True) == {HERE: 100}
    assert cluster.manual.monotonic() == pytest.approx(BELIEVED_AFTER_S, abs=0.2)
