"""The shard behind one partition of ``__transaction_state``: what the runtime loads, runs operations on and unloads."""

from skep.base.loop.slicer import Work
from skep.coordination.shard import CoordinatorRecord, Outcome, ProducerStamp
from skep.coordination.transaction_records import TransactionLogKey
from skep.coordination.transactions import completion, transaction_expiry
from skep.coordination.transactions.transaction_table import TransactionTable

NO_CHANGE = CoordinatorRecord(TransactionLogKey(transactional_id=""), None)
IDS_AT_ONCE = 500
"""Transactional ids checked in one slice when the shard is loaded."""


class TransactionShard(TransactionTable):
    """A ``TransactionTable`` that completes decided transactions and expires old ones once it is loaded."""

    @property
    def no_change(self) -> CoordinatorRecord:
        return NO_CHANGE

    def replay_end_of_transaction(self, producer: ProducerStamp, *, is_committed: bool) -> None:
        """Does nothing: no transaction writes to ``__transaction_state``."""

    def loaded(self) -> Work[Outcome]:
        """Resumes the transactions that are decided: none, some or all of their markers may be written."""
        for number, transaction in enumerate(self.transactions.values()):
            if transaction.is_ending:
                completion.begin(self, transaction, is_resumed=True)
            if not number % IDS_AT_ONCE:
                yield
        transaction_expiry.schedule_all(self)
        return Outcome()

    def unloaded(self) -> Outcome:
        """No client waits in this shard. The next broker that loads the partition resumes the completions."""
        return Outcome()
