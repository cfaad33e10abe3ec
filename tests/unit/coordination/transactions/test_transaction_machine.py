"""Random producers, zombies, timeouts, failing partitions and restarts over one shard and model partitions.

The partitions keep what real ones do: the epoch of each producer, and which of them has a transaction open. What they
hold in the end is judged as a read_committed reader does.
"""

from dataclasses import dataclass, field
from typing import Any

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, multiple, rule

from skep.base.errors import ErrorCode, KafkaError, StorageError
from skep.base.ids import TopicPartition
from skep.coordination.shard import ProducerStamp
from skep.coordination.transaction_records import decode_transaction_record
from skep.coordination.transactions.transaction import HIGHEST_EPOCH
from skep.coordination.transactions.transaction_state import NEXT, State
from tests.unit.coordination.transactions.scene import Marker, Scene, refusal

IDS = st.sampled_from(["till-1", "till-1", "till-1", "till-2"])
PARTITIONS = [TopicPartition("orders", index) for index in range(3)]
A_PARTITION = st.sampled_from(PARTITIONS)


@dataclass
class ModelPartition:
    """Records of transactions, by number of the transaction, and what became of them."""

    epochs: dict[int, int] = field(default_factory=dict)
    open: dict[int, list[int]] = field(default_factory=dict)
    committed: set[int] = field(default_factory=set)
    aborted: set[int] = field(default_factory=set)

    def check_epoch(self, producer: ProducerStamp) -> None:
        if producer.producer_epoch < self.epochs.get(producer.producer_id, -1):
            raise KafkaError(ErrorCode.invalid_producer_epoch)

    def append(self, producer: ProducerStamp, number: int) -> None:
        self.epochs[producer.producer_id] = producer.producer_epoch
        self.open.setdefault(producer.producer_id, []).append(number)

    def mark(self, marker: Marker) -> None:
        self.check_epoch(marker.producer)
        self.epochs[marker.producer.producer_id] = marker.producer.producer_epoch
        ended = self.open.pop(marker.producer.producer_id, [])
        (self.committed if marker.is_committed else self.aborted).update(ended)


@dataclass(eq=False)
class Client:
    """A producer as an application holds it. It may have been replaced without knowing."""

    transactional_id: str
    producer: ProducerStamp
    number: int = -1
    """Of the transaction that it believes to be in; -1: none."""


class TransactionMachine(RuleBasedStateMachine):
    clients = Bundle("clients")

    @initialize()
    def begin(self) -> None:
        self.scene = Scene()
        self.partitions = {partition: ModelPartition() for partition in PARTITIONS}
        self.numbers = 0
        self.promised_commit: set[int] = set()
        self.promised_abort: set[int] = set()
        self._watch()

    def _watch(self) -> None:
        self.scene.markers.on_write = lambda marker: self.partitions[marker.partition].mark(marker)
        self.scene.markers.is_open = lambda partition, producer_id: producer_id in self.partitions[partition].open

    # What applications do.

    @rule(target=clients, transactional_id=IDS, timeout_ms=st.sampled_from([1_000, 30_000, 900_000]))
    def a_producer_starts(self, transactional_id: str, timeout_ms: int) -> Any:
        try:
            producer = self.scene.init(transactional_id, timeout_ms=timeout_ms)
        except KafkaError as error:
            assert error.code is ErrorCode.concurrent_transactions
            return multiple()
        return Client(transactional_id, producer)

    @rule(client=clients)
    def a_producer_asks_for_its_next_epoch(self, client: Client) -> None:
        try:
            client.producer = self.scene.init(client.transactional_id, current=client.producer)
        except KafkaError as error:
            assert error.code in (ErrorCode.concurrent_transactions, ErrorCode.producer_fenced)
            return
        client.number = -1

    @rule(client=clients, partitions=st.sets(A_PARTITION, min_size=1), sent=st.booleans())
    def it_adds_partitions(self, client: Client, partitions: set[TopicPartition], sent: bool) -> None:
        code = refusal(lambda: self.scene.add(client.producer, *partitions, transactional_id=client.transactional_id))
        if code is not ErrorCode.none:
            return
        if client.number < 0:
            self.numbers += 1
            client.number = self.numbers
        if sent:
            for partition in sorted(partitions):
                self.it_sends_records(client, partition)

    @rule(client=clients, partition=A_PARTITION)
    def late_records_arrive(self, client: Client, partition: TopicPartition) -> None:
        self.it_sends_records(client, partition)

    @rule(client=clients, ahead=st.sampled_from([1, 2, HIGHEST_EPOCH]))
    def records_of_an_epoch_that_was_never_given_arrive(self, client: Client, ahead: int) -> None:
        producer_id, newest = self.scene.transaction(client.transactional_id).producer
        forged = ProducerStamp(producer_id, min(newest + ahead, HIGHEST_EPOCH))
        for partition, log in self.partitions.items():
            self.it_sends_records(Client(client.transactional_id, forged, self.numbers), partition)
            assert log.epochs.get(producer_id, -1) < forged.producer_epoch, "they were taken"

    def it_sends_records(self, client: Client, partition: TopicPartition) -> None:
        log = self.partitions[partition]
        number, unmarked = client.number, log.open.get(client.producer.producer_id)
        try:
            if unmarked is None or client.producer.producer_epoch != log.epochs[client.producer.producer_id]:
                self.scene.verify(client.producer, partition, client.transactional_id)
            elif number < 0:
                # Decided, and the marker is not there yet: what comes until then still counts with the transaction,
                # as in Kafka. A real partition takes only what is next in sequence, so nothing that was sent before.
                number = unmarked[-1]
            log.check_epoch(client.producer)
        except KafkaError:
            return
        assert number >= 0, "records were taken outside of a transaction"
        log.append(client.producer, number)

    @rule(client=clients, commit=st.booleans())
    def it_ends_its_transaction(self, client: Client, commit: bool) -> None:
        code = refusal(lambda: self.scene.end(client.producer, commit=commit, transactional_id=client.transactional_id))
        if code is ErrorCode.none and client.number >= 0:
            (self.promised_commit if commit else self.promised_abort).add(client.number)
            client.number = -1

    @rule(client=consumes(clients))
    def a_producer_dies(self, client: Client) -> None:
        pass

    # What happens around them.

    @rule(milliseconds=st.sampled_from([0, 0, 60, 5_000, 20_000]))
    def time_passes(self, milliseconds: int) -> None:
        self.scene.pass_ms(milliseconds)

    @rule(partition=A_PARTITION, times=st.integers(1, 3))
    def a_partition_refuses_markers(self, partition: TopicPartition, times: int) -> None:
        self.scene.markers.refusals[partition] = [StorageError("no space left")] * times

    @rule(is_full=st.booleans())
    def the_coordinators_disk_fills_or_empties(self, is_full: bool) -> None:
        self.scene.refuse_writes = KafkaError(ErrorCode.concurrent_transactions) if is_full else None

    @rule()
    def the_coordinator_restarts(self) -> None:
        self.scene.restart()

    # What is always true.

    @invariant()
    def no_transition_is_illegal(self) -> None:
        last: dict[str, State] = {}
        for key, value, _ in self.scene.log:
            decoded = decode_transaction_record(key, value)
            assert decoded is not None
            assert decoded[1] is not None
            transactional_id, state = decoded[0].transactional_id, State(decoded[1].transaction_status)
            assert transactional_id not in last or state in NEXT[last[transactional_id]]
            last[transactional_id] = state

    @invariant()
    def replay_gives_the_same_state(self) -> None:
        assert self.scene.replay_is_the_same()

    @invariant()
    def a_transaction_is_committed_everywhere_or_nowhere(self) -> None:
        committed = set().union(*(log.committed for log in self.partitions.values()))
        aborted = set().union(*(log.aborted for log in self.partitions.values()))
        assert not committed & aborted
        # Nothing is committed but what its producer was told is; a fenced one is told nothing.
        assert committed <= self.promised_commit
        assert not aborted & self.promised_commit
        assert not committed & self.promised_abort

    def teardown(self) -> None:
        if not hasattr(self, "scene"):
            return
        self.scene.markers.refusals.clear()
        self.scene.refuse_writes = None
        self.scene.pass_ms(1_000_000)
        assert all(not log.open for log in self.partitions.values()), "a transaction hangs"
        assert not self.scene.shard.completions
        self.a_transaction_is_committed_everywhere_or_nowhere()


TestTransactions = TransactionMachine.TestCase
TestTransactions.settings = settings(max_examples=150, stateful_step_count=50, deadline=None)
