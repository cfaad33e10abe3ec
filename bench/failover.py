"""Rows failover, failover-zookeeper, election, follower-idle: the loss of a broker, and being ready for it.

``failover`` kills the leader of a partition (``kill -9``) under a producer with acks=all, and takes the time to the
next acknowledged send, on each of the two stores. ``election`` takes the controller's pass, from the log line that it
writes, when a broker dies that leads many partitions. ``follower-idle`` is the CPU of a broker that follows a thousand
partitions in which nothing happens.
"""

import re
import time
from collections.abc import Iterator

from confluent_kafka import KafkaError, Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from bench.peers import cpu_seconds
from bench.row import Row, say, spread
from skep.testing import EmbeddedCluster

NAMES = ("failover", "failover-zookeeper", "election", "follower-idle")

SESSION_TIMEOUT_S = 2.0
KILLS = 5
FEW, MANY = 1_000, 10_000
IDLE_PARTITIONS = 1_000
IDLE_S = 20.0
GIVE_UP_S = 60.0

_PASS = re.compile(r"controller: (\d+) partitions changed, (\d+) new leaders.*, (\d+) ms")


def measure() -> Iterator[Row]:
    yield _failover("failover", "sqlite")
    yield _failover("failover-zookeeper", "zookeeper")
    yield _election()
    yield _follower_idle()


def _create(servers: str, name: str, partitions: int, replicas: int) -> None:
    admin = AdminClient({"bootstrap.servers": servers, "log_level": 0})
    for future in admin.create_topics([NewTopic(name, partitions, replicas)]).values():
        future.result(timeout=GIVE_UP_S)


def _failover(name: str, metadata: str) -> Row:
    config = {"zookeeper.session.timeout.ms": str(int(SESSION_TIMEOUT_S * 1000))}
    with EmbeddedCluster(brokers=3, metadata=metadata, config=config) as cluster:
        _create(cluster.bootstrap_servers, "t", 1, 3)
        times = []
        for _ in range(KILLS):
            cluster.wait_until_in_sync()
            leader = cluster.leader_of("t")
            times.append(_time_to_next_acknowledgement(cluster, leader))
            say(f"broker {leader} killed: {times[-1]:.2f} s")
            cluster.restart(leader)
    return Row(
        name,
        f"from kill -9 of a leader to the next acknowledged send, metadata in {metadata}, the worst of five",
        SESSION_TIMEOUT_S + 2,
        "at most",
        max(times),
        f"{max(times):.2f} s",
        f"session timeout {SESSION_TIMEOUT_S:.0f} s",
        unit="s",
        details={"ours": spread(times, 2)},
    )


def _time_to_next_acknowledgement(cluster: EmbeddedCluster, leader: int) -> float:
    acknowledged: list[float] = []

    def delivered(error: KafkaError | None, _message: object) -> None:
        if error is None:
            acknowledged.append(time.perf_counter())

    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "acks": "all", "log_level": 0, "linger.ms": 0})
    producer.produce("t", b"before", on_delivery=delivered)
    producer.flush(GIVE_UP_S)
    acknowledged.clear()
    cluster.kill(leader)
    killed = time.perf_counter()
    while not acknowledged:
        producer.produce("t", b"after", on_delivery=delivered)
        producer.poll(0.01)
        if time.perf_counter() - killed > GIVE_UP_S:
            raise RuntimeError("no send was acknowledged any more")
    producer.flush(GIVE_UP_S)
    return acknowledged[0] - killed


def _election() -> Row:
    few, many = (_time_to_elect(count) for count in (FEW, MANY))
    return Row(
        "election",
        f"the controller's time for each partition when a broker dies that leads {MANY:,}, in milliseconds",
        0.5,
        "at most",
        many / MANY,
        f"{many:.0f} ms for {MANY:,}",
        f"{few:.0f} ms for {FEW:,}",
        unit="ms",
        details={"few": few, "many": many, "growth": round((many / MANY) / (few / FEW), 2)},
    )


def _time_to_elect(count: int) -> float:
    """Milliseconds of the pass that elected ``count`` leaders. Topics of ten partitions, two brokers, no data."""
    config = {"skep.max.partitions": "100000"}
    with EmbeddedCluster(brokers=2, config=config) as cluster:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0})
        victim = next(i for i in cluster.running if i != cluster.controller)
        other = cluster.controller
        topics = [
            NewTopic(f"t-{number}", 10, replica_assignment=[[victim, other]] * 10) for number in range(count // 10)
        ]
        for start in range(0, len(topics), 100):
            for future in admin.create_topics(topics[start : start + 100]).values():
                future.result(timeout=GIVE_UP_S)
        cluster.kill(victim)
        deadline = time.monotonic() + GIVE_UP_S
        while time.monotonic() < deadline:
            passes = [tuple(map(int, found)) for found in _PASS.findall(cluster.log(other))]
            if sum(elected for _, elected, _ in passes) >= count:
                return float(sum(ms for _, elected, ms in passes if elected))
            time.sleep(0.1)
    raise RuntimeError(f"not all of {count} leaders were elected")


def _follower_idle() -> Row:
    with EmbeddedCluster(brokers=2) as cluster:
        leader, follower = cluster.running
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0})
        topic = NewTopic("idle", IDLE_PARTITIONS, replica_assignment=[[leader, follower]] * IDLE_PARTITIONS)
        for future in admin.create_topics([topic]).values():
            future.result(timeout=GIVE_UP_S)
        cluster.wait_until_in_sync()
        time.sleep(2)  # what comes with the creation is over
        used = []
        for broker in (follower, leader):
            before = cpu_seconds(cluster.broker(broker).pid)
            time.sleep(IDLE_S)
            used.append((cpu_seconds(cluster.broker(broker).pid) - before) / IDLE_S * 100)
    return Row(
        "follower-idle",
        f"CPU of a broker that follows {IDLE_PARTITIONS:,} idle partitions, in percent of a core",
        3.0,
        "at most",
        used[0],
        f"{used[0]:.1f} %",
        f"its leader: {used[1]:.1f} %",
        unit="%",
    )
