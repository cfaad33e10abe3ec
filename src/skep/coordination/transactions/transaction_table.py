"""The transactional ids of one partition of ``__transaction_state``, and their transactions.

The operations on the table are in modules of their own, one per request or timer: ``init_producer``,
``add_partitions``, ``decision`` (EndTxn and aborts), ``completion`` (markers, after the decision) and
``transaction_expiry``. ``TransactionShard`` is the table as the runtime sees it.
"""

from collections.abc import Callable, Hashable, Iterator
from typing import Any

from skep.base.config.coordinator_config import CoordinatorConfig
from skep.base.config.current_config import CurrentConfig
from skep.base.errors import ErrorCode, KafkaError
from skep.base.ids import TopicPartition
from skep.coordination.shard import Outcome, ProducerStamp, ShardContext
from skep.coordination.transactions.markers import Markers
from skep.coordination.transactions.transaction import Transaction
from skep.coordination.transactions.transaction_state import State


class _NeedsProducerId:
    def __repr__(self) -> str:
        return "NEEDS_PRODUCER_ID"


NEEDS_PRODUCER_ID: Any = _NeedsProducerId()
"""As a response: a new producer id is needed; submit the request again with one."""

FIRST_RETRY_MS = 50
LONGEST_RETRY_MS = 5_000


class CompletionProgress:
    """How far the completion of a decided transaction has come; see ``completion.py``.

    ``unmarked`` are the partitions whose marker is not committed yet. ``in_flight`` are those of them whose marker is
    written and may still be committed; ``is_retrying`` means that a retry of the others is scheduled. ``unwritten``
    yields the partitions that the current pass has not reached yet, and is None between two passes; ``last_error`` says
    why a marker is missing after a pass. ``is_resumed``: the transaction was decided before this shard was loaded,
    perhaps by another broker.
    """

    __slots__ = (
        "failures",
        "in_flight",
        "is_decided",
        "is_resumed",
        "is_retrying",
        "last_error",
        "unmarked",
        "unwritten",
    )

    def __init__(self, partitions: frozenset[TopicPartition], *, is_resumed: bool) -> None:
        self.is_decided = False
        self.is_resumed = is_resumed
        self.unmarked = set(partitions)
        self.in_flight: set[TopicPartition] = set()
        self.unwritten: Iterator[TopicPartition] | None = None
        self.last_error: BaseException | None = None
        self.failures = 0
        self.is_retrying = False

    def retry_ms(self) -> int:
        """Counts a failure and returns the delay before the next try; the delay doubles each time."""
        self.failures += 1
        return int(min(FIRST_RETRY_MS << min(self.failures - 1, 10), LONGEST_RETRY_MS))


class TransactionTable:
    """Owns the transactional ids of one partition.

    ``transactions`` and ``ongoing`` (the ids whose transaction is open) follow from the log. The rest does not:

    - ``earlier_epochs`` holds the previous epoch of each producer that asked for its next epoch itself (KIP-360), so
      that a repeated request gets the same response;
    - ``completions`` holds each transaction that is decided but not complete;
    - ``unscanned_ongoing`` and ``unscanned_ids`` are what a scan for expired ones has not reached yet.
    """

    def __init__(self, context: ShardContext, config: CurrentConfig, markers: Markers) -> None:
        self.partition = context.partition
        self.clock = context.clock
        self.timers = context.timers
        self._config = config
        self.markers = markers
        self.transactions: dict[str, Transaction] = {}
        self.ongoing: dict[str, None] = {}
        self.earlier_epochs: dict[str, int] = {}
        self.completions: dict[str, CompletionProgress] = {}
        self.unscanned_ongoing: list[str] = []
        self.unscanned_ids: list[str] = []

    @property
    def config(self) -> CoordinatorConfig:
        """The options in force."""
        return self._config.value.coordinator

    def replay(self, offset: int, key: Any, value: Any, producer: ProducerStamp | None) -> None:
        transactional_id = key.transactional_id
        if value is None:
            self.transactions.pop(transactional_id, None)
            self.earlier_epochs.pop(transactional_id, None)
            self.ongoing.pop(transactional_id, None)
            return
        transaction = self.transactions[transactional_id] = Transaction.of(key, value)
        if transaction.state is State.ONGOING:
            self.ongoing[transactional_id] = None
        else:
            self.ongoing.pop(transactional_id, None)

    def transaction(self, transactional_id: str) -> Transaction:
        """Raises INVALID_PRODUCER_ID_MAPPING when the transactional id does not exist."""
        transaction = self.transactions.get(transactional_id)
        if transaction is None:
            raise KafkaError(
                ErrorCode.invalid_producer_id_mapping, f"transactional id {transactional_id!r} does not exist"
            )
        return transaction

    def transaction_of(self, transactional_id: str, producer: ProducerStamp) -> Transaction:
        """Raises INVALID_PRODUCER_ID_MAPPING or PRODUCER_FENCED when another producer has this transactional id."""
        transaction = self.transaction(transactional_id)
        transaction.check_producer(producer)
        return transaction

    def schedule(self, key: Hashable, delay_ms: int, operation: Callable[["TransactionTable"], Outcome]) -> None:
        self.timers.schedule(key, delay_ms, operation)
