"""Which broker a partition's batches go to while leaders move; connections are the cluster's and go back to it."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from skep.base.errors import ErrorCode, KafkaError
from skep.client.cluster_client import Node
from skep.client.errors import Unreachable
from skep.client.produce import delivery
from skep.client.produce.produce_queue import BatchResult, Partition, QueuedBatch

A, B = Node(1, "a", 1), Node(2, "b", 2)
MOVED = BatchResult(ErrorCode.not_leader_or_follower)


class FakePipe:
    """What was sent to a broker, and the results that a test puts in."""

    wants_to_write = False

    is_expiring = False

    def __init__(self, node: Node, options: Any, *, timeout_s: float) -> None:
        self.node = node
        self.under_way: list[list[QueuedBatch]] = []
        self.results: list[BatchResult | None] = []
        self.sent: list[bytes] = []

    @property
    def in_flight(self) -> int:
        return len(self.under_way)

    def batches(self) -> list[QueuedBatch]:
        return [batch for request in self.under_way for batch in request]

    def add(self, batches: list[QueuedBatch]) -> None:
        self.under_way.append(batches)
        self.sent += [bytes(batch.data) for batch in batches]

    def write(self) -> None:
        pass

    def read(self) -> Iterator[Any]:
        while self.results:
            result = self.results.pop(0)
            if result is None:
                raise Unreachable("the connection was closed")
            batches = self.under_way.pop(0)
            yield batches, {(batch.partition.topic, batch.partition.index): result for batch in batches}

    def fileno(self) -> int:
        return -1

    def release(self) -> Any:
        return None if self.under_way else self


class Cluster:
    def __init__(self) -> None:
        self.where: dict[tuple[str, int], Node] = {("t", 1): A, ("t", 2): A}
        self.unknown = 0
        self.released: list[Node] = []

    def leaders(self, topics: list[str]) -> dict[tuple[str, int], Node]:
        if self.unknown:
            self.unknown -= 1
            raise KafkaError(ErrorCode.unknown_topic_or_partition, "topic 't'")
        return dict(self.where)

    def switch_metadata_broker(self) -> None:
        """There is no other broker to ask."""

    def acquire_connection(self, node: Node) -> Node:
        return node

    def release_connection(self, node: Node, connection: Any) -> None:
        self.released.append(node)


class Scene:
    """A delivery of two partitions; every request has one batch."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        self.pipes: dict[str, FakePipe] = {}

        def pipe(node: Node, options: Any, *, timeout_s: float) -> FakePipe:
            made = self.pipes[node.host] = FakePipe(node, options, timeout_s=timeout_s)
            return made

        monkeypatch.setattr(delivery, "ProducePipe", pipe)
        monkeypatch.setattr(delivery, "time", SimpleNamespace(monotonic=lambda: self.now))
        self.cluster = Cluster()
        self.delivery = delivery.Delivery(
            self.cluster,  # type: ignore[arg-type]
            None,  # type: ignore[arg-type]
            max_request_bytes=1,
            request_timeout_s=30,
            delivery_timeout_s=120,
            before_sending=lambda partitions: None,
        )
        self.queue = self.delivery.queue
        self.first, self.second = self.queue.partition("t", 1), self.queue.partition("t", 2)

    def add(self, partition: Partition, *names: bytes) -> None:
        for name in names:
            self.queue.add(partition, name, 1)

    def turn(self, after_s: float = 0.0) -> None:
        self.now += after_s
        self.delivery.turn(wait=False)

    def sent(self, host: str) -> list[bytes]:
        return self.pipes[host].sent if host in self.pipes else []


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Scene:
    return Scene(monkeypatch)


def test_nothing_of_a_partition_goes_to_a_new_leader_while_the_old_one_owes_responses(scene: Scene) -> None:
    scene.add(scene.first, b"f0")
    scene.add(scene.second, b"s0")
    scene.turn()
    scene.cluster.where = {("t", 1): B, ("t", 2): B}
    scene.pipes["a"].results.append(MOVED)
    scene.turn()
    scene.add(scene.second, b"s1")
    scene.turn(after_s=1)
    assert (scene.sent("a"), scene.sent("b")) == ([b"f0", b"s0"], [b"f0"])
    scene.pipes["a"].results.append(MOVED)
    scene.turn()
    scene.turn(after_s=1)
    assert scene.sent("b") == [b"f0", b"s0", b"s1"]


def test_only_the_leader_of_the_partition_that_was_refused_is_looked_up_again(scene: Scene) -> None:
    scene.add(scene.first, b"f0")
    scene.add(scene.second, b"s0")
    scene.turn()
    scene.cluster.where = {("t", 1): B, ("t", 2): A}
    scene.pipes["a"].results += [MOVED]
    scene.turn()
    assert scene.delivery._leaders == {("t", 2): A}
    scene.turn(after_s=1)
    assert (scene.sent("a"), scene.sent("b")) == ([b"f0", b"s0"], [b"f0"])


def test_a_lost_broker_frees_the_partition_for_the_next_one(scene: Scene) -> None:
    scene.add(scene.second, b"s0", b"s1")
    scene.turn()
    scene.cluster.where = {("t", 1): B, ("t", 2): B}
    scene.pipes["a"].results.append(None)
    scene.turn()
    scene.turn(after_s=1)
    assert scene.sent("b") == [b"s0", b"s1"]


def test_a_topic_that_a_broker_has_not_heard_of_is_asked_for_again(scene: Scene) -> None:
    scene.cluster.unknown = 3
    scene.add(scene.first, b"f0")
    for _ in range(4):
        scene.turn(after_s=0.2)
    assert scene.sent("a") == [b"f0"]


def test_a_topic_that_stays_unknown_is_believed_to_be_gone(scene: Scene) -> None:
    scene.cluster.unknown = 1000
    scene.add(scene.first, b"f0")
    scene.turn()
    with pytest.raises(KafkaError, match="topic 't'") as gone:
        scene.turn(after_s=1.1)
    assert gone.value.code is ErrorCode.unknown_topic_or_partition


def test_connections_go_back_to_the_cluster_unless_a_response_may_still_come(scene: Scene) -> None:
    scene.cluster.where = {("t", 1): A, ("t", 2): B}
    scene.add(scene.first, b"f0")
    scene.add(scene.second, b"s0")
    scene.turn()
    scene.pipes["a"].results.append(BatchResult(ErrorCode.none, 0))
    scene.turn()
    scene.delivery.close()
    assert scene.cluster.released == [A]


def test_requests_under_way_are_waited_for_before_all_is_dropped(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    scene.cluster.where = {("t", 1): A, ("t", 2): B}
    scene.add(scene.first, b"f0", b"f1")
    scene.add(scene.second, b"s0")
    scene.turn()
    to_come = [BatchResult(ErrorCode.none, 0), MOVED]
    scene.pipes["b"].results.append(None)

    def poll(pipes: Any, timeout_s: float) -> None:
        scene.pipes["a"].results.append(to_come.pop(0))

    monkeypatch.setattr(scene.delivery, "_poll", poll)
    scene.delivery.settle()
    assert to_come == []
    scene.delivery.close()
    assert scene.cluster.released == [A], "the other one was lost"


def test_a_broker_that_answers_no_more_is_not_waited_for_longer_than_a_request_may_take(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    def poll(pipes: Any, timeout_s: float) -> None:
        scene.now += timeout_s

    scene.add(scene.first, b"f0")
    scene.turn()
    monkeypatch.setattr(scene.delivery, "_poll", poll)
    scene.delivery.settle()
    assert scene.now == 30
    scene.delivery.close()
    assert scene.cluster.released == []
