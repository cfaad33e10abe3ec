"""Partitions move to other brokers: grown first, shrunk later, at the speed that is set, or called off."""

import time
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from skep.base.errors import ErrorCode
from skep.testing import EmbeddedCluster
from skep.wire import apis
from tests.cluster.driving import (
    FEW_INTERNAL_PARTITIONS,
    LONG_SESSIONS,
    ask,
    create,
    leftovers,
    read,
    send,
    state,
    unused_name,
    wait_for_isr,
    wait_until_equal,
)
from tests.raw_requests import seconds
from tests.waiting import wait_until

pytestmark = pytest.mark.xdist_group(__name__)

FOLLOWER, LEADER = "follower.replication.throttled.rate", "leader.replication.throttled.rate"
NEW = 4
OLD = (1, 2, 3)
VALUES = [bytes([number]) * 10_000 for number in range(40)]
SIZE = sum(map(len, VALUES))
"""Sent in a batch each: a throttle cuts no batch in two, and one batch of all would be copied at once."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    """Three brokers, and a fourth that came when the cluster was there."""
    with EmbeddedCluster(3, config={**FEW_INTERNAL_PARTITIONS, **LONG_SESSIONS}) as running:
        assert running.add() == NEW
        running.wait_until_ready()
        yield running


@pytest.fixture
def topic(cluster: EmbeddedCluster) -> Iterator[str]:
    """A name that no test has used; no throttle is left behind."""
    yield unused_name(cluster)
    throttle(cluster, None)
    throttle(cluster, None, LEADER, OLD)


def throttle(
    cluster: EmbeddedCluster, bytes_per_second: int | None, option: str = FOLLOWER, brokers: Sequence[int] = (NEW,)
) -> None:
    """How fast the new broker may copy, or may be given copies by its leaders."""
    # A client of a broker that does not know the new one yet waits for it until the request times out.
    cluster.wait_until_ready()
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0})
    operation = AlterConfigOpType.SET if bytes_per_second else AlterConfigOpType.DELETE
    entry = ConfigEntry(option, str(bytes_per_second or 0), incremental_operation=operation)
    for broker in brokers:
        resource = ConfigResource(ResourceType.BROKER, str(broker), incremental_configs=[entry])
        admin.incremental_alter_configs([resource])[resource].result(60)


def reassign(cluster: EmbeddedCluster, topic: str, replicas: Sequence[int] | None, partition: int = 0) -> ErrorCode:
    wanted = {"name": topic, "partitions": [{"partition_index": partition, "replicas": replicas}]}
    answer = ask(cluster, 1, apis.ALTER_PARTITION_REASSIGNMENTS, 0, topics=[wanted], timeout=seconds(30))
    assert answer.error_code is ErrorCode.none
    [[row]] = [one.partitions for one in answer.responses]
    code: ErrorCode = row.error_code
    return code


def under_way(cluster: EmbeddedCluster, topic: str) -> list[Any]:
    """What every broker says is being moved of the topic, when they say the same."""
    wanted = [{"name": topic, "partition_indexes": [0, 1, 2]}]
    answers = [
        ask(cluster, i, apis.LIST_PARTITION_REASSIGNMENTS, 0, topics=wanted, timeout=seconds(30)).topics
        for i in cluster.running
    ]
    assert all(answer == answers[0] for answer in answers)
    return [row for one in answers[0] for row in one.partitions]


def wait_for_replicas(cluster: EmbeddedCluster, topic: str, replicas: Sequence[int]) -> None:
    """Until all brokers know that the partition has moved."""

    def is_done() -> bool:
        known = [state(cluster, topic, seen_by=i) for i in cluster.running]
        return all(one is not None and one.replicas == list(replicas) and one.isr == set(replicas) for one in known)

    wait_until(is_done, lambda: f"{topic} is on {replicas}: {state(cluster, topic)}", 60)


def test_a_partition_moves_to_a_new_broker_with_all_that_is_in_it(cluster: EmbeddedCluster, topic: str) -> None:
    create(cluster, topic, [[1, 2, 3]])
    send(cluster, topic, VALUES, batch_num_messages=1)
    before = state(cluster, topic)
    assert before is not None
    assert reassign(cluster, topic, [4, 2, 3]) is ErrorCode.none
    wait_for_replicas(cluster, topic, [4, 2, 3])
    wait_until_equal(cluster, topic, (2, 3, 4), end=len(VALUES))
    after = state(cluster, topic)
    assert after is not None
    assert after.leader in (2, 3, 4), "the leader was the one that had to go"
    assert after.leader_epoch > before.leader_epoch
    wait_until(lambda: not leftovers(cluster, 1, topic), "the files of the old replica go")
    assert under_way(cluster, topic) == []
    assert read(cluster, topic, len(VALUES)) == VALUES
    assert send(cluster, topic, [b"goes on"]) == [len(VALUES)]


@pytest.mark.parametrize(("option", "brokers"), [(FOLLOWER, (NEW,)), (LEADER, OLD)], ids=["copier", "leaders"])
def test_a_move_grows_first_and_is_as_slow_as_it_is_told_to_be(
    option: str, brokers: Sequence[int], cluster: EmbeddedCluster, topic: str
) -> None:
    create(cluster, topic, [[1, 2, 3]])
    send(cluster, topic, VALUES, batch_num_messages=1)
    # Slow at first, so that what follows is seen before the move ends.
    slow, fast = SIZE // 60, SIZE // 3
    throttle(cluster, slow, option, brokers)
    began = time.monotonic()
    assert reassign(cluster, topic, [1, 2, 4]) is ErrorCode.none
    wait_until(lambda: (now := state(cluster, topic)) and now.replicas == [1, 2, 4, 3], "it has grown")
    [row] = wait_until(lambda: under_way_if_agreed(cluster, topic), "all brokers know of the move")
    assert (list(row.replicas), list(row.adding_replicas), list(row.removing_replicas)) == ([1, 2, 4, 3], [4], [3])
    assert state(cluster, topic).isr == {1, 2, 3}, "the old ones stay until the new one is in sync"  # type: ignore[union-attr]
    assert leftovers(cluster, 3, topic) == [f"{topic}-0"]
    send(cluster, topic, [b"meanwhile"])
    raised = time.monotonic()
    throttle(cluster, fast, option, brokers)
    wait_for_replicas(cluster, topic, [1, 2, 4])
    allowed = (raised - began) * slow + (time.monotonic() - raised) * fast
    # A leader lets a copy be ahead of its rate by a second and a half: what came last was not waited for.
    assert allowed >= SIZE - (1.5 * fast if option == LEADER else 0)
    wait_until_equal(cluster, topic, (1, 2, 4), end=len(VALUES) + 1)
    wait_until(lambda: not leftovers(cluster, 3, topic), "the files of the old replica go")


def under_way_if_agreed(cluster: EmbeddedCluster, topic: str) -> list[Any]:
    try:
        return under_way(cluster, topic)
    except AssertionError:
        return []


def test_a_move_that_is_called_off_leaves_everything_as_it_was(cluster: EmbeddedCluster, topic: str) -> None:
    create(cluster, topic, [[1, 2, 3]])
    send(cluster, topic, VALUES, batch_num_messages=1)
    assert reassign(cluster, topic, None) is ErrorCode.no_reassignment_in_progress
    throttle(cluster, 1_000)
    assert reassign(cluster, topic, [4, 1]) is ErrorCode.none
    wait_until(lambda: leftovers(cluster, NEW, topic) == [f"{topic}-0"], "the copy is begun")
    assert reassign(cluster, topic, None) is ErrorCode.none
    wait_for_replicas(cluster, topic, [1, 2, 3])
    wait_until(lambda: not leftovers(cluster, NEW, topic), "what was copied goes")
    assert under_way(cluster, topic) == []
    assert send(cluster, topic, [b"goes on"]) == [len(VALUES)]
    wait_until_equal(cluster, topic, (1, 2, 3), end=len(VALUES) + 1)


def test_a_move_that_was_too_slow_goes_faster_when_the_throttle_is_taken_off(
    cluster: EmbeddedCluster, topic: str
) -> None:
    create(cluster, topic, [[1, 2, 3]])
    send(cluster, topic, VALUES, batch_num_messages=1)
    throttle(cluster, 1_000)
    assert reassign(cluster, topic, [1, 2, 4]) is ErrorCode.none
    wait_until(lambda: leftovers(cluster, NEW, topic) == [f"{topic}-0"], "the copy is begun")
    throttle(cluster, None)
    wait_for_replicas(cluster, topic, [1, 2, 4])
    wait_until_equal(cluster, topic, (1, 2, 4), end=len(VALUES))


@pytest.mark.parametrize(
    ("option", "rate", "slow_brokers", "named"),
    [
        ("leader.replication.throttled.replicas", LEADER, [1], "0:1"),
        ("follower.replication.throttled.replicas", FOLLOWER, [3], "0:3"),
        ("follower.replication.throttled.replicas", FOLLOWER, [3], "*"),
    ],
)
def test_a_replica_that_was_away_catches_up_slowly_where_its_topic_names_it(
    cluster: EmbeddedCluster, topic: str, option: str, rate: str, slow_brokers: list[int], named: str
) -> None:
    other = f"{topic}-other"
    for name in (topic, other):
        create(cluster, name, [[1, 2, 3]])
    name_throttled(cluster, topic, option, named)
    try:
        # At this rate it takes minutes.
        throttle(cluster, 1_000, rate, slow_brokers)
        assert send(cluster, topic, [b"in sync"]) == [0], "who is in sync is not throttled"
        cluster.kill(3)
        for name in (topic, other):
            wait_for_isr(cluster, name, {1, 2})
            send(cluster, name, VALUES)
        cluster.restart(3)
        wait_for_isr(cluster, other, {1, 2, 3})
        assert state(cluster, topic).isr == {1, 2}  # type: ignore[union-attr]
        name_throttled(cluster, topic, option, None)
        wait_for_isr(cluster, topic, {1, 2, 3})
    finally:
        throttle(cluster, None, rate, slow_brokers)
    wait_until_equal(cluster, topic, (1, 2, 3), end=len(VALUES) + 1)


def name_throttled(cluster: EmbeddedCluster, topic: str, option: str, replicas: str | None) -> None:
    """As kafka-reassign-partitions does it, and takes it back when it is done."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0})
    operation = AlterConfigOpType.DELETE if replicas is None else AlterConfigOpType.SET
    entry = ConfigEntry(option, replicas or "", incremental_operation=operation)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    admin.incremental_alter_configs([resource])[resource].result(60)


def test_a_move_waits_for_a_broker_that_dies_meanwhile_and_ends_when_it_is_back(
    cluster: EmbeddedCluster, topic: str
) -> None:
    create(cluster, topic, [[1, 2]])
    send(cluster, topic, VALUES, batch_num_messages=1)
    # So slow that it does not end before the broker dies.
    throttle(cluster, 1_000)
    assert reassign(cluster, topic, [2, 4]) is ErrorCode.none
    wait_until(lambda: leftovers(cluster, NEW, topic) == [f"{topic}-0"], "the copy is begun")
    cluster.kill(NEW)
    wait_for_isr(cluster, topic, {1, 2})
    assert send(cluster, topic, [b"goes on"]) == [len(VALUES)]
    cluster.restart(NEW)
    throttle(cluster, None)
    wait_for_replicas(cluster, topic, [2, 4])
    wait_until_equal(cluster, topic, (2, 4), end=len(VALUES) + 1)


def test_a_topic_loses_and_gains_replicas_without_a_move_where_nothing_is_copied(
    cluster: EmbeddedCluster, topic: str
) -> None:
    create(cluster, topic, [[1, 2, 3]])
    send(cluster, topic, [b"x"])
    assert reassign(cluster, topic, [3, 1]) is ErrorCode.none
    wait_for_replicas(cluster, topic, [3, 1])
    wait_until(lambda: not leftovers(cluster, 2, topic), "its files go")
    assert reassign(cluster, topic, [3, 1, 2]) is ErrorCode.none
    wait_for_replicas(cluster, topic, [3, 1, 2])
    wait_until_equal(cluster, topic, (1, 2, 3), end=1)


@pytest.mark.parametrize("replicas", [[1, 9], [1, 1], []], ids=["one that is not there", "one twice", "nobody"])
def test_a_move_to_where_it_cannot_go_is_refused(cluster: EmbeddedCluster, topic: str, replicas: list[int]) -> None:
    create(cluster, topic, [[1, 2]])
    assert reassign(cluster, topic, replicas) is ErrorCode.invalid_replica_assignment
    assert reassign(cluster, topic, [1, 2], partition=7) is ErrorCode.unknown_topic_or_partition
    assert under_way(cluster, topic) == []
