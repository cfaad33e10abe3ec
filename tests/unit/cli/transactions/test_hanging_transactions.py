import pytest

from skep.base.ids import TopicPartition
from skep.cli.failures import CommandError
from skep.cli.transactions.hanging_transactions import hangs, open_transaction
from skep.cli.transactions.transaction_admin import ProducerView, TransactionView

HERE, THERE = TopicPartition("orders", 0), TopicPartition("orders", 1)


def producer(start_offset: int | None = 42) -> ProducerView:
    return ProducerView(HERE, 7, 0, 3, 10, 1_700_000_000_000, start_offset)


def transaction(state: str, *partitions: TopicPartition) -> TransactionView:
    return TransactionView("billing-1", 1, state, 7, 0, 60_000, 1, list(partitions))


def test_a_transaction_that_its_coordinator_will_end_does_not_hang() -> None:
    assert not hangs(producer(), transaction("Ongoing", HERE, THERE))
    assert not hangs(producer(), transaction("PrepareAbort", HERE))


def test_a_transaction_that_no_coordinator_counts_on_hangs() -> None:
    assert hangs(producer(), None)
    assert hangs(producer(), transaction("CompleteCommit"))
    assert hangs(producer(), transaction("Ongoing", THERE))


def test_a_transaction_is_found_by_where_it_begins() -> None:
    assert open_transaction([producer(None), producer(42)], HERE, 42).start_offset == 42
    with pytest.raises(
        CommandError, match="no open transaction of orders-0 starts at offset 41; the open ones start at 42"
    ):
        open_transaction([producer(42)], HERE, 41)
    with pytest.raises(CommandError, match="it has no open transaction"):
        open_transaction([producer(None)], HERE, 41)
