"""Members of a group that note every commit they were told of, and what there is to read for them.

Not with kafka-python: a poll that ends between its JoinGroup and its SyncGroup can lose the join, and the member is
then without partitions for good, whichever broker coordinates.
"""

import contextlib
import itertools
from collections import defaultdict
from collections.abc import Iterator

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from skep.testing import EmbeddedCluster
from tests.cluster.coordinators import PARTITIONS, PATIENCE_S, committed_offsets
from tests.waiting import wait_until

TOPIC = "orders"
GIVE_UP_MS = 4_000
"""How long clients take a frozen broker for one that is about to answer; a minute, if nobody says."""


class Orders:
    """Numbered records, without end, from a producer that waits for all replicas."""

    def __init__(self, servers: str) -> None:
        options = {"enable.idempotence": True, "linger.ms": 5, "socket.timeout.ms": GIVE_UP_MS, "log_level": 0}
        self._producer = Producer({"bootstrap.servers": servers, **options})
        self._numbers = itertools.count()

    def send_some(self) -> None:
        for number in itertools.islice(self._numbers, 6 * PARTITIONS):
            self._producer.produce(TOPIC, b"%d" % number, partition=number % PARTITIONS)
        self._producer.poll(0)


class Rider:
    """A member that reads everything it is given, and commits what it has read."""

    def __init__(self, servers: str, group: str) -> None:
        self._consumer = Consumer(
            {
                "bootstrap.servers": servers,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "session.timeout.ms": 6_000,
                "heartbeat.interval.ms": 500,
                "socket.timeout.ms": GIVE_UP_MS,
                "log_level": 0,
            }
        )
        self._consumer.subscribe([TOPIC])
        self.read: defaultdict[int, set[int]] = defaultdict(set)

    def read_and_commit(self) -> dict[int, int]:
        """What the coordinator has just said is committed, by partition; nothing when it said so of nothing."""
        messages = [message for message in self._consumer.consume(100, timeout=0.1) if message.error() is None]
        if not messages:
            return {}
        for message in messages:
            self.read[message.partition()].add(message.offset())
        try:
            committed = self._consumer.commit(asynchronous=False)
        except KafkaException:
            return {}  # not told: it may be committed or not
        return {offset.partition: offset.offset for offset in committed if offset.error is None and offset.offset >= 0}

    def close(self) -> None:
        self._consumer.close()


class Party:
    """The members of one group. ``told`` is the last commit of each partition that any of them was told of."""

    def __init__(self, cluster: EmbeddedCluster, group: str, members: int) -> None:
        self._cluster = cluster
        self._orders = Orders(cluster.bootstrap_servers)
        self._riders = [Rider(cluster.bootstrap_servers, group) for _ in range(members)]
        self.group = group
        self.told: dict[int, int] = {}

    def ride(self, times: int = 3) -> None:
        """Until each member has been told of so many more commits."""
        left = dict.fromkeys(range(len(self._riders)), times)

        def have_committed() -> bool:
            self._orders.send_some()
            for number, rider in enumerate(self._riders):
                committed = rider.read_and_commit()
                self._note(committed)
                left[number] -= bool(committed)
            return max(left.values()) <= 0

        wait_until(have_committed, lambda: f"each member commits, and lacks so many: {left}", PATIENCE_S)

    def _note(self, committed: dict[int, int]) -> None:
        for partition, offset in committed.items():
            # Whoever is given a partition begins where the last commit is, so a commit that is lost shows here.
            assert offset >= self.told.get(partition, 0), f"partition {partition} went back from {self.told}"
            self.told[partition] = offset

    def check_nothing_is_lost(self) -> None:
        """What was told is committed, and all that is committed was read by a member."""
        found = committed_in(self._cluster, self.group)
        assert {p: offset for p, offset in self.told.items() if found.get(p, -1) < offset} == {}, (self.told, found)
        for partition, offset in found.items():
            read = set[int]().union(*(rider.read[partition] for rider in self._riders))
            assert sorted(set(range(offset)) - read) == []

    def close(self) -> None:
        for rider in self._riders:
            rider.close()


@contextlib.contextmanager
def party_of(cluster: EmbeddedCluster, group: str, members: int) -> Iterator[Party]:
    """A group that is on its way: every member has partitions, and has committed."""
    with contextlib.closing(Party(cluster, group, members)) as party:
        party.ride()
        yield party


def committed_in(cluster: EmbeddedCluster, group: str) -> dict[int, int]:
    """What the cluster says, to somebody who was not there."""
    stranger = Consumer({"bootstrap.servers": cluster.bootstrap_servers, "group.id": group, "log_level": 0})
    try:
        found = committed_offsets(stranger, [TopicPartition(TOPIC, partition) for partition in range(PARTITIONS)])
        return {one.partition: one.offset for one in found if one.offset >= 0}
    finally:
        stranger.close()
