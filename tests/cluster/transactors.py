"""A transactional producer that notes what became of each transaction, and the check that readers see it so."""

import itertools
from collections import defaultdict
from collections.abc import Callable

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Producer, TopicPartition

from tests.cluster.coordinators import PARTITIONS, PATIENCE_S
from tests.cluster.group_riders import GIVE_UP_MS
from tests.waiting import wait_until

LEDGER = "ledger"
ATTEMPT_S = 10


def _nothing() -> None:
    pass


class Transactor:
    """Each transaction has one record in every partition of ``LEDGER``: its number, under the producer's name.

    Between calls none is open. Of each in ``doubtful`` nobody has said what became of it.
    """

    def __init__(self, servers: str, name: str) -> None:
        self._servers = servers
        self._name = name
        self._numbers = itertools.count()
        self.committed: set[int] = set()
        self.aborted: set[int] = set()
        self.doubtful: set[int] = set()
        self._producer = self._new_producer()

    def _new_producer(self) -> Producer:
        producer = Producer(
            {
                "bootstrap.servers": self._servers,
                "transactional.id": self._name,
                "transaction.timeout.ms": 60_000,
                "socket.timeout.ms": GIVE_UP_MS,
                "linger.ms": 1,
                "log_level": 0,
            }
        )
        producer.init_transactions(PATIENCE_S)
        return producer

    def go_on(self, times: int = 3, under_way: Callable[[], None] = _nothing) -> None:
        """Until so many more are committed; ``under_way`` is called once, when the first has written its records."""
        wanted = len(self.committed) + times
        self._transact(under_way)

        def have_committed() -> bool:
            self._transact(_nothing)
            return len(self.committed) >= wanted

        wait_until(have_committed, lambda: f"{wanted} are committed, not {len(self.committed)}", PATIENCE_S)

    def _transact(self, under_way: Callable[[], None]) -> None:
        number = next(self._numbers)
        try:
            self._producer.begin_transaction()
            for partition in range(PARTITIONS):
                self._producer.produce(LEDGER, b"%d" % number, key=self._name.encode(), partition=partition)
            self._producer.flush(PATIENCE_S)
            under_way()
            if number % 3 == 2:
                self._insist(self._producer.abort_transaction)
                self.aborted.add(number)
            else:
                self._insist(self._producer.commit_transaction)
                self.committed.add(number)
        except KafkaException as failure:
            self._give_up(number, failure.args[0])

    def _insist(self, end: Callable[[float], None]) -> None:
        """Ends the transaction; an answer that does not come is asked for again."""

        def has_ended() -> bool:
            try:
                end(ATTEMPT_S)
            except KafkaException as failure:
                if not failure.args[0].retriable():
                    raise
                return False
            return True

        wait_until(has_ended, "the transaction ends", PATIENCE_S)

    def _give_up(self, number: int, error: KafkaError) -> None:
        if error.txn_requires_abort():
            self._insist(self._producer.abort_transaction)
            self.aborted.add(number)
        else:
            # Fenced, most likely: the next producer of this name ends what the last one left open.
            self.doubtful.add(number)
            self._producer = self._new_producer()

    def check_all_or_nothing(self) -> None:
        """A committed transaction is read once, from every partition; an aborted one from none."""
        seen = self._read_committed()
        whole = list(range(PARTITIONS))
        assert {number: seen[number] for number in self.committed if sorted(seen[number]) != whole} == {}
        assert {number: seen[number] for number in self.aborted if seen[number]} == {}
        assert {number: seen[number] for number in self.doubtful if sorted(seen[number]) not in ([], whole)} == {}
        assert seen.keys() <= self.committed | self.aborted | self.doubtful

    def _read_committed(self) -> defaultdict[int, list[int]]:
        """The partitions in which each number is read, up to the end of all of them."""
        consumer = Consumer(
            {
                "bootstrap.servers": self._servers,
                "group.id": "none",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "log_level": 0,
            }
        )
        consumer.assign([TopicPartition(LEDGER, partition, OFFSET_BEGINNING) for partition in range(PARTITIONS)])
        seen: defaultdict[int, list[int]] = defaultdict(list)
        ended: set[int] = set()

        def is_read() -> bool:
            for message in consumer.consume(1_000, timeout=0.1):
                if message.error() is None and message.key() == self._name.encode():
                    seen[int(message.value())].append(message.partition())
                elif message.error() is not None and message.error().code() == KafkaError._PARTITION_EOF:
                    ended.add(message.partition())
            return len(ended) == PARTITIONS

        try:
            wait_until(is_read, "all partitions are read to their end", PATIENCE_S)
        finally:
            consumer.close()
        return seen

    def close(self) -> None:
        """Nothing is open that would have to be ended."""
