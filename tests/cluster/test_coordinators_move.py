"""Coordinators that die or stop: groups and transactions go on elsewhere, and nothing that was promised is lost."""

import contextlib
import itertools
import random
import threading
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from skep.base.errors import ErrorCode
from skep.coordination.partitioner import partition_for
from skep.testing import EmbeddedCluster
from skep.wire import apis
from tests.cluster.driving import ask
from tests.cluster.group_riders import RIDERS, TOPIC, Rider
from tests.scenario.exactly_once_worker import INPUT, OUTPUT
from tests.scenario.test_exactly_once import PARTITIONS, WORKERS, Feeder, Guest, kitchen_of, seed
from tests.waiting import wait_until

COORDINATOR_PARTITIONS = 4
OPTIONS = {
    "offsets.topic.num.partitions": str(COORDINATOR_PARTITIONS),
    "transaction.state.log.num.partitions": str(COORDINATOR_PARTITIONS),
    "group.min.session.timeout.ms": "500",
    "group.initial.rebalance.delay.ms": "0",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
    "min.insync.replicas": "2",
}
GROUP = "riders"
DEATHS = 8


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(3, config=OPTIONS) as started:
        admin = AdminClient({"bootstrap.servers": started.bootstrap_servers, "log_level": 0})
        topics = [NewTopic(name, PARTITIONS, len(started.brokers)) for name in (TOPIC, INPUT, OUTPUT)]
        for made in admin.create_topics(topics).values():
            made.result()
        yield started


def coordinator_of(cluster: EmbeddedCluster, key: str, topic: str = "__consumer_offsets") -> int:
    return cluster.leader_of(topic, partition_for(key, COORDINATOR_PARTITIONS))


def named_coordinator(cluster: EmbeddedCluster, i: int, group: str) -> tuple[int, str] | None:
    """Whom broker ``i`` names, and where; None while it knows of none."""
    [found] = ask(cluster, i, apis.FIND_COORDINATOR, 6, key_type=0, coordinator_keys=[group]).coordinators
    return (found.node_id, f"{found.host}:{found.port}") if found.error_code is ErrorCode.none else None


def group_answers(cluster: EmbeddedCluster, i: int, group: str) -> tuple[ErrorCode, ErrorCode]:
    """What broker ``i`` says to an OffsetFetch, and to a Heartbeat of a member that nobody knows."""
    [fetched] = ask(cluster, i, apis.OFFSET_FETCH, 8, groups=[{"group_id": group, "topics": None}]).groups
    beat = ask(cluster, i, apis.HEARTBEAT, 4, group_id=group, generation_id=1, member_id="nobody")
    return fetched.error_code, beat.error_code


@pytest.mark.parametrize("group", [f"{GROUP}-{number}" for number in range(COORDINATOR_PARTITIONS)])
def test_every_broker_names_the_coordinator_and_only_that_one_answers_for_the_group(
    cluster: EmbeddedCluster, group: str
) -> None:
    cluster.wait_until_in_sync()
    wait_until(lambda: all(named_coordinator(cluster, i, group) for i in cluster.brokers), "all know of one")
    right = coordinator_of(cluster, group)
    assert {named_coordinator(cluster, i, group) for i in cluster.brokers} == {(right, cluster.brokers[right])}
    answered = (ErrorCode.none, ErrorCode.unknown_member_id)
    wait_until(lambda: group_answers(cluster, right, group) == answered, "it has loaded the groups")
    for other in cluster.brokers.keys() - {right}:
        assert group_answers(cluster, other, group) == (ErrorCode.not_coordinator, ErrorCode.not_coordinator)


class Orders:
    """Numbered records, without end, from a producer that waits for all replicas."""

    def __init__(self, servers: str) -> None:
        self._producer = Producer(
            {"bootstrap.servers": servers, "enable.idempotence": True, "linger.ms": 5, "log_level": 0}
        )
        self._numbers = itertools.count()

    def send_some(self) -> None:
        for number in itertools.islice(self._numbers, 20):
            self._producer.produce(TOPIC, b"%d" % number)
        self._producer.poll(0)


def committed_in(cluster: EmbeddedCluster, group: str) -> dict[int, int]:
    """What the cluster says, to somebody who was not there; asked again while the coordinator is moving."""
    stranger = Consumer({"bootstrap.servers": cluster.bootstrap_servers, "group.id": group, "log_level": 0})
    partitions = [TopicPartition(TOPIC, partition) for partition in range(PARTITIONS)]

    def answer() -> list[TopicPartition] | None:
        try:
            return list(stranger.committed(partitions, timeout=30))
        except KafkaException as error:
            assert error.args[0].code() in (KafkaError.NOT_COORDINATOR, KafkaError.COORDINATOR_LOAD_IN_PROGRESS), error
            return None

    try:
        found = wait_until(answer, "the coordinator says what is committed")
        return {one.partition: one.offset for one in found if one.offset >= 0}
    finally:
        stranger.close()


def ride(rider: Rider, orders: Orders, told: dict[int, int], times: int = 3) -> None:
    """Until the rider has been told of so many more commits; ``told`` has the last of each partition."""
    for _ in range(times):

        def has_committed() -> bool:
            orders.send_some()
            committed = rider.read_and_commit()
            told.update(committed)
            return bool(committed)

        wait_until(has_committed, "a commit", 40)


@pytest.mark.parametrize("end", ["kill", "stop", "pause"])
@pytest.mark.parametrize("client", RIDERS)
def test_a_group_rides_through_the_loss_of_its_coordinator_without_losing_a_commit(
    cluster: EmbeddedCluster, client: str, end: str
) -> None:
    group, told = f"{GROUP}-{client}-{end}", dict[int, int]()
    cluster.wait_until_in_sync()
    orders = Orders(cluster.bootstrap_servers)
    with contextlib.closing(RIDERS[client](cluster.bootstrap_servers, group)) as rider:
        ride(rider, orders, told)
        lost = coordinator_of(cluster, group)
        before = dict(told)
        end_broker: Callable[[int], None] = getattr(cluster, end)
        end_broker(lost)
        wait_until(lambda: coordinator_of(cluster, group) not in (lost, -1), "another coordinator")
        # Read while the rider is silent: so it is what was committed before, and nothing that was said again.
        found = committed_in(cluster, group)
        assert {partition: found.get(partition, -1) >= offset for partition, offset in before.items()} == dict.fromkeys(
            before, True
        ), (before, found)
        ride(rider, orders, told)
        if end == "pause":
            cluster.resume(lost)
        else:
            cluster.restart(lost)
        cluster.wait_until_ready()
        ride(rider, orders, told)
        found = committed_in(cluster, group)
        assert all(found[partition] >= offset for partition, offset in told.items()), (told, found)
    for i in cluster.brokers:
        assert "Traceback" not in cluster.log(i)


def test_transactions_are_exactly_once_while_brokers_and_workers_die(cluster: EmbeddedCluster) -> None:
    chance = random.Random(seed())
    cluster.wait_until_in_sync()
    servers = cluster.bootstrap_servers
    feeder, guest = Feeder(servers), Guest(servers)
    feeder.start()
    with contextlib.closing(guest), kitchen_of(servers) as kitchen:
        for number in range(DEATHS):
            before = guest.seen.total()
            wait_until(lambda before=before: kitchen.staff() or guest.read_on() > before, "more to be boiled", 60)
            # Not waiting for a condition, but choosing the moment of death.
            threading.Event().wait(chance.random() * 0.5)
            if number % 2 == 0:
                # The busiest ones: the coordinator of a worker, that of the group, any.
                victim = (
                    coordinator_of(cluster, chance.choice(WORKERS), "__transaction_state"),
                    coordinator_of(cluster, "kitchen"),
                    chance.choice(list(cluster.brokers)),
                )[number // 2 % 3]
                if victim in cluster.running:
                    cluster.kill(victim)
                    wait_until(lambda before=before: kitchen.staff() or guest.read_on() > before, "more boiled", 60)
                    cluster.restart(victim)
                    cluster.wait_until_in_sync()
            else:
                kitchen.kill(chance.choice(WORKERS))
            kitchen.staff()
        feeder.stop()
        wait_until(lambda: kitchen.staff() or guest.read_on() >= feeder.fed, "all to be boiled", 90)
        guest.read_on()
    expected = {b"boiled-%d" % number: 1 for number in range(feeder.fed)}
    assert {egg: count for egg, count in guest.seen.items() if expected.get(egg) != count} == {}
    assert expected.keys() - guest.seen.keys() == set()
    for i in cluster.brokers:
        assert "Traceback" not in cluster.log(i)
