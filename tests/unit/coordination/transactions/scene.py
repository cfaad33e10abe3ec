"""A shard of the transaction coordinator under a driver, with partitions that only remember their markers."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

from skep.base.config.broker_config import BrokerConfig
from skep.base.config.current_config import CurrentConfig
from skep.base.errors import ErrorCode, KafkaError
from skep.base.ids import TopicPartition
from skep.coordination.shard import ProducerStamp
from skep.coordination.transaction_records import decode_transaction_record
from skep.coordination.transactions import add_partitions, decision, init_producer, transaction_listing
from skep.coordination.transactions.init_producer import InitProducerRequest
from skep.coordination.transactions.transaction import Transaction
from skep.coordination.transactions.transaction_shard import TransactionShard
from skep.coordination.transactions.transaction_state import State
from skep.coordination.transactions.transaction_table import NEEDS_PRODUCER_ID
from tests.unit.coordination.driver import ShardDriver

ID = "till-1"
DONE = "done"
ORDERS_0, ORDERS_1 = TopicPartition("orders", 0), TopicPartition("orders", 1)


class Marker(NamedTuple):
    partition: TopicPartition
    producer: ProducerStamp
    is_committed: bool


class Promise:
    """A future without an event loop: a test keeps or breaks it."""

    def __init__(self) -> None:
        self._error: BaseException | None = None
        self._callbacks: list[Callable[[Any], None]] = []

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        self._callbacks.append(callback)

    def cancelled(self) -> bool:
        return False

    def exception(self) -> BaseException | None:
        return self._error

    def settle(self, error: BaseException | None = None) -> None:
        self._error = error
        for callback in self._callbacks:
            callback(self)


class ModelMarkers:
    """What ``Markers`` promises, over a list. ``refusals`` are raised, one each time, before a marker is taken.

    ``is_open`` is what a partition says of a producer's transaction in it.
    """

    def __init__(self) -> None:
        self.written: list[Marker] = []
        self.refusals: dict[TopicPartition, list[Exception]] = {}
        self.decision: Promise | None = None
        self.syncs: dict[TopicPartition, Promise] = {}
        self.is_open: Callable[[TopicPartition, int], bool] = lambda partition, producer_id: False
        self.on_write: Callable[[Marker], None] = lambda marker: None

    def committed(self, index: int) -> Any:
        return self.decision

    def write(
        self,
        index: int,
        partition: TopicPartition,
        producer: ProducerStamp,
        *,
        is_committed: bool,
        raises_epoch: bool,
    ) -> Any:
        if self.refusals.get(partition):
            raise self.refusals[partition].pop(0)
        marker = Marker(partition, producer, is_committed)
        self.on_write(marker)
        self.written.append(marker)
        return self.syncs.get(partition)


class Scene(ShardDriver):
    """Requests in, what they are answered out; KafkaError where they are refused."""

    def __init__(self) -> None:
        self.markers = ModelMarkers()
        self.config = CurrentConfig(BrokerConfig())
        self._next_producer_id = 1000
        super().__init__(
            lambda context: TransactionShard(context, self.config, self.markers), decode_transaction_record
        )

    def set(self, **options: Any) -> None:
        config = self.config.value
        self.config.value = replace(config, coordinator=replace(config.coordinator, **options))

    def transaction(self, transactional_id: str = ID) -> Transaction:
        found: Transaction = self.shard.transactions[transactional_id]
        return found

    def state(self, transactional_id: str = ID) -> State:
        return self.transaction(transactional_id).state

    def ask_init(
        self, transactional_id: str = ID, *, current: ProducerStamp | None = None, timeout_ms: int = 60_000
    ) -> dict[str, Any]:
        asked = InitProducerRequest(transactional_id, timeout_ms, current)
        response = self.submit(lambda shard: init_producer.initialize(shard, asked, None))
        if response is NEEDS_PRODUCER_ID:
            self._next_producer_id += 1
            response = self.submit(lambda shard: init_producer.initialize(shard, asked, self._next_producer_id))
        assert isinstance(response, dict)
        return response

    def init(self, transactional_id: str = ID, **asked: Any) -> ProducerStamp:
        response = self.ask_init(transactional_id, **asked)
        if response["error_code"] is not ErrorCode.none:
            raise KafkaError(response["error_code"])
        return ProducerStamp(response["producer_id"], response["producer_epoch"])

    def add(self, producer: ProducerStamp, *partitions: TopicPartition, transactional_id: str = ID) -> Any:
        return self.submit(
            lambda shard: add_partitions.add(shard, transactional_id, producer, frozenset(partitions), DONE)
        )

    def verify(self, producer: ProducerStamp, partition: TopicPartition, transactional_id: str = ID) -> None:
        add_partitions.verify(self.shard, transactional_id, producer, partition)

    def end(self, producer: ProducerStamp, *, commit: bool, transactional_id: str = ID) -> Any:
        return self.submit(lambda shard: decision.end(shard, transactional_id, producer, commit=commit, response=DONE))

    def describe(self, transactional_id: str = ID) -> dict[str, Any]:
        found = self.submit(lambda shard: transaction_listing.describe(shard, transactional_id))
        assert isinstance(found, dict)
        return found

    def in_state(self, state: State, transactional_id: str = ID) -> ProducerStamp:
        """Brings a new transactional id into this state; its producer."""
        producer = self.init(transactional_id)
        if state is not State.EMPTY:
            self.add(producer, ORDERS_0, ORDERS_1, transactional_id=transactional_id)
        if state in (State.PREPARE_COMMIT, State.COMPLETE_COMMIT):
            self.end(producer, commit=True, transactional_id=transactional_id)
        elif state in (State.PREPARE_ABORT, State.COMPLETE_ABORT):
            self.end(producer, commit=False, transactional_id=transactional_id)
        if state in (State.COMPLETE_COMMIT, State.COMPLETE_ABORT):
            self.pass_ms(0)
        assert self.state(transactional_id) is state
        return producer

    def replay_is_the_same(self) -> bool:
        shard = self.replayed()
        same: bool = shard.transactions == self.shard.transactions and set(shard.ongoing) == set(self.shard.ongoing)
        return same


def refusal(action: Callable[[], Any]) -> ErrorCode:
    """The code with which it is refused; NONE when it is not."""
    try:
        action()
    except KafkaError as error:
        return error.code
    return ErrorCode.none
