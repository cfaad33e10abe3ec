"""The state behind one partition of ``__transaction_state``: its transactional ids.

What is done with them is in modules of its own, which work on the shard they are given: ``initializing``, ``adding``,
``ending``, ``finishing`` (what comes after the decision), ``expiring``.
"""

from collections.abc import Callable, Hashable
from typing import Any

from skep.base.config.broker_config import BrokerConfig
from skep.base.errors import ErrorCode, KafkaError
from skep.base.loop.slicer import Work
from skep.coordination.shard import CoordinatorRecord, Outcome, ProducerStamp, ShardContext
from skep.coordination.transaction_records import TransactionLogKey
from skep.coordination.transactions import completion as finishing
from skep.coordination.transactions import transaction_expiry as expiring
from skep.coordination.transactions.completion import Finishing
from skep.coordination.transactions.markers import Markers
from skep.coordination.transactions.transaction import Transaction
from skep.coordination.transactions.transaction_state import State

NO_CHANGE = CoordinatorRecord(TransactionLogKey(transactional_id=""), None)
IDS_AT_ONCE = 500
"""Looked at without a pause when all are loaded."""


class TransactionShard:
    """Owns the transactional ids of one partition.

    ``transactions`` and ``ongoing`` (the ids whose transaction is open) follow from the log. The rest does not:
    ``earlier_epochs`` has, of producers that asked for their next epoch themselves, the one before (KIP-360), so that
    the same question asked again gets the same answer; ``finishing`` has each transaction that is decided but not
    complete; ``unlooked_ongoing`` and ``unlooked_ids`` are what a scan for expired ones has still to look at.
    ``settings`` gives the broker's options as they are at that moment.
    """

    def __init__(self, context: ShardContext, settings: Callable[[], BrokerConfig], markers: Markers) -> None:
        self.partition = context.partition
        self.clock = context.clock
        self.timers = context.timers
        self.settings = settings
        self.markers = markers
        self.transactions: dict[str, Transaction] = {}
        self.ongoing: dict[str, None] = {}
        self.earlier_epochs: dict[str, int] = {}
        self.finishing: dict[str, Finishing] = {}
        self.unlooked_ongoing: list[str] = []
        self.unlooked_ids: list[str] = []

    @property
    def no_change(self) -> CoordinatorRecord:
        return NO_CHANGE

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

    def replay_end_of_transaction(self, producer: ProducerStamp, *, is_committed: bool) -> None:
        """No transaction writes to this topic."""

    def loaded(self) -> Work[Outcome]:
        """Goes on with the transactions that were decided: their markers may have been written, or some, or none."""
        for number, transaction in enumerate(self.transactions.values()):
            if transaction.is_ending:
                finishing.begin(self, transaction, is_resumed=True)
            if not number % IDS_AT_ONCE:
                yield
        expiring.schedule_all(self)
        return Outcome()

    def unloaded(self) -> Outcome:
        """Nobody waits here; what is being finished goes on where the partition is loaded next."""
        return Outcome()

    def transaction_of(self, transactional_id: str, producer: ProducerStamp) -> Transaction:
        """INVALID_PRODUCER_ID_MAPPING or PRODUCER_FENCED when that is not the producer of this transactional id."""
        transaction = self.transactions.get(transactional_id)
        if transaction is None:
            raise KafkaError(ErrorCode.invalid_producer_id_mapping, f"nobody is known as {transactional_id!r}")
        transaction.check_producer(producer)
        return transaction

    def schedule(self, key: Hashable, delay_ms: int, operation: Callable[["TransactionShard"], Outcome]) -> None:
        self.timers.schedule(key, delay_ms, operation)
