"""Which transactions are undecided, what markers change, and who is refused."""

import struct

import pytest

from skep.base.errors import ErrorCode, KafkaError
from skep.base.ids import LeaderEpoch
from skep.records.batch import read_header
from skep.records.end_txn_marker import EndTxnMarker, build_marker
from skep.storage.producers.open_transactions import Transactions
from skep.storage.producers.producers import Producers
from skep.storage.segment.transaction_index import AbortedTransaction


def data(kit, sequence: int = 0, *, producer: int = 1, epoch: int = 0, is_transactional: bool = True):
    options = {"producer_id": producer, "producer_epoch": epoch, "base_sequence": sequence}
    return read_header(kit.batch(1, is_transactional=is_transactional, **options))


def end(producers: Producers, offset: int, *, committed: bool, producer: int = 1, epoch: int = 0, coordinator: int = 0):
    marker = EndTxnMarker(committed, coordinator)
    batch = build_marker(marker, producer_id=producer, producer_epoch=epoch, timestamp=0)
    producers.check_marker(producer, epoch, coordinator)
    return producers.record_marker(read_header(batch), marker, offset, 500)


def code_of(call, *args, **options) -> ErrorCode:
    with pytest.raises(KafkaError) as caught:
        call(*args, **options)
    return caught.value.code


def test_the_oldest_undecided_transaction_is_where_stability_ends() -> None:
    transactions = Transactions()
    assert transactions.first_unstable_offset is None
    transactions.begin(1, 0)
    transactions.begin(2, 2)
    transactions.begin(1, 3)
    assert transactions.first_unstable_offset == 0
    assert transactions.end(1, 4) == AbortedTransaction(1, 0, 4, 2)
    assert transactions.first_unstable_offset == 0, "the marker may still be lost"
    transactions.high_watermark_moved(4)
    assert transactions.first_unstable_offset == 0
    transactions.high_watermark_moved(5)
    assert transactions.first_unstable_offset == 2
    assert transactions.end(2, 6) == AbortedTransaction(2, 2, 6, 7)
    transactions.high_watermark_moved(7)
    assert transactions.first_unstable_offset is None


def test_of_several_markers_past_the_high_watermark_each_counts() -> None:
    transactions = Transactions()
    for producer in (1, 2, 3):
        transactions.begin(producer, producer * 10)
    for producer, marker in ((3, 40), (1, 41), (2, 42)):
        transactions.end(producer, marker)
    seen = []
    for high_watermark in (40, 41, 42, 43):
        transactions.high_watermark_moved(high_watermark)
        seen.append(transactions.first_unstable_offset)
    assert seen == [10, 10, 20, None]


def test_a_marker_without_a_transaction_changes_nothing_for_readers() -> None:
    transactions = Transactions()
    transactions.begin(1, 0)
    assert transactions.end(2, 1) is None
    assert transactions.first_unstable_offset == 0


def test_a_batch_outside_the_transaction_of_its_producer_is_refused(kit) -> None:
    producers = Producers()
    producers.record(data(kit), 0, 0)
    outside = data(kit, 1, is_transactional=False)
    assert code_of(producers.check, outside) is ErrorCode.invalid_txn_state
    assert producers.check(data(kit, 1)) is None
    end(producers, 1, committed=True)
    assert producers.check(outside) is None


def test_a_duplicate_is_answered_even_when_the_transaction_is_over(kit) -> None:
    producers = Producers()
    producers.record(data(kit), 10, 0)
    end(producers, 11, committed=True)
    assert producers.check(data(kit)).base_offset == 10
    assert producers.check(data(kit, 1)) is None, "sequences go on over transactions of one epoch"


def test_a_marker_of_a_higher_epoch_keeps_the_old_producer_out(kit) -> None:
    producers = Producers()
    producers.record(data(kit, 5), 10, 0)
    assert end(producers, 11, committed=False, epoch=1) == AbortedTransaction(1, 10, 11, 12)
    assert code_of(producers.check, data(kit, 6)) is ErrorCode.invalid_producer_epoch
    assert code_of(producers.check, data(kit, 6, epoch=1)) is ErrorCode.out_of_order_sequence_number
    assert producers.check(data(kit, 0, epoch=1)) is None


def test_markers_of_those_that_were_replaced_are_refused(kit) -> None:
    producers = Producers()
    end(producers, 0, committed=True, epoch=2, coordinator=5)
    old_producer = code_of(end, producers, 1, committed=True, epoch=1, coordinator=5)
    assert old_producer is ErrorCode.invalid_producer_epoch
    old_coordinator = code_of(end, producers, 1, committed=True, epoch=2, coordinator=4)
    assert old_coordinator is ErrorCode.transaction_coordinator_fenced
    end(producers, 1, committed=True, epoch=2, coordinator=5)


def test_a_new_epoch_within_a_transaction_goes_on_with_it(kit) -> None:
    producers = Producers()
    end(producers, 3, committed=True, coordinator=8)
    producers.record(data(kit), 10, 0)
    producers.record(data(kit, epoch=1), 11, 0)
    [state] = producers.states()
    assert (state.epoch, state.coordinator_epoch, state.transaction_first_offset) == (1, 8, 10)


def test_batches_without_a_sequence_are_checked_by_epoch_alone(kit) -> None:
    producers = Producers()
    for offset in (0, 1, 2):
        assert producers.check(data(kit, -1, epoch=3)) is None
        producers.record(data(kit, -1, epoch=3), offset, 0)
    assert code_of(producers.check, data(kit, -1, epoch=2)) is ErrorCode.invalid_producer_epoch
    assert producers.transactions.first_unstable_offset == 0
    again = Producers.decode(producers.encode())
    assert again.check(data(kit, -1, epoch=3)) is None
    assert list(again.states()) == list(producers.states())


def test_a_producer_in_a_transaction_is_neither_expired_nor_forgotten(kit) -> None:
    producers = Producers(max_producers=2)
    producers.record(data(kit, producer=1), 0, 0)
    producers.expire(1000)
    for producer in (2, 3, 4):
        producers.record(data(kit, producer=producer, is_transactional=False), producer, 0)
    assert {state.producer_id for state in producers.states()} == {1, 3, 4}
    producers.record(data(kit, producer=5), 5, 0)
    producers.record(data(kit, producer=6), 6, 0)
    assert {state.producer_id for state in producers.states()} == {1, 3, 4, 5, 6}
    end(producers, 7, committed=True, producer=1)
    assert {state.producer_id for state in producers.states()} == {1, 4, 5, 6}
    producers.expire(501)
    assert {state.producer_id for state in producers.states()} == {5, 6}
    assert len(producers) == 2


def test_the_producer_that_has_just_written_is_not_forgotten_whoever_is_in_a_transaction(kit) -> None:
    producers = Producers(max_producers=2)
    for producer in (1, 2):
        producers.record(data(kit, producer=producer), producer, 0)
    producers.record(data(kit, producer=3, is_transactional=False), 3, 0)
    assert producers.check(data(kit, producer=3, is_transactional=False)).base_offset == 3
    again = Producers.decode(producers.encode(), max_producers=2)
    assert again.check(data(kit, producer=3, is_transactional=False)).base_offset == 3


@pytest.mark.timeout(20)
def test_many_open_transactions_do_not_slow_the_others_down(kit) -> None:
    """Going through all of them at each append would take a minute."""
    producers, first = Producers(max_producers=10_000), data(kit)
    for producer in range(10_000):
        producers.record(first._replace(producer_id=producer), producer, 0)
    plain = data(kit, is_transactional=False)
    for producer in range(10_000, 12_000):
        producers.record(plain._replace(producer_id=producer), producer, 0)
    assert len(producers) == 12_000


def test_the_longest_silent_goes_first_also_after_a_snapshot(kit) -> None:
    producers = Producers(max_producers=3)
    for producer in (1, 2, 3, 1):
        producers.record(data(kit, producer=producer, epoch=producer, is_transactional=False), producer, 0)
    again = Producers.decode(producers.encode(), max_producers=3)
    for forgetful in (producers, again):
        forgetful.record(data(kit, producer=4, is_transactional=False), 9, 0)
        assert {state.producer_id for state in forgetful.states()} == {3, 1, 4}


def test_a_snapshot_remembers_transactions_and_coordinators(kit) -> None:
    producers = Producers()
    producers.record(data(kit, 4, producer=9, epoch=2), 100, 55)
    end(producers, 101, committed=True, producer=9, epoch=2, coordinator=3)
    producers.record(data(kit, 5, producer=9, epoch=2), 102, 66)
    producers.record(data(kit, producer=7), 103, 77)
    end(producers, 104, committed=True, producer=8, epoch=1, coordinator=4)
    rows = producers.encode()[10:]
    assert rows == b"".join(
        struct.pack(">qhiqiqiq", *row)
        for row in (
            (9, 2, 4, 100, 0, 55, 3, 102),
            (9, 2, 5, 102, 0, 66, 3, 102),
            (7, 0, 0, 103, 0, 77, -1, 103),
            (8, 1, -1, -1, 0, 500, 4, -1),
        )
    )
    again = Producers.decode(producers.encode())
    assert list(again.states()) == list(producers.states())
    assert again.transactions.first_unstable_offset == 102
    assert again.transactions.ongoing == {9: 102, 7: 103}
    assert list(again.transactions.ongoing) == [9, 7]
    assert code_of(again.check, data(kit, 1, producer=8, epoch=1)) is ErrorCode.out_of_order_sequence_number


def test_a_log_ends_transactions_with_markers(kit) -> None:
    log = kit.log()
    ids = {"producer_id": 1, "producer_epoch": 0}
    kit.append(log, 2, base_sequence=0, is_transactional=True, **ids)
    assert log.first_unstable_offset == 0
    appended = log.append_marker(1, 0, 0, False, LeaderEpoch(4), kit.now_ms)
    assert (appended.base_offset, appended.last_offset, log.log_end_offset) == (2, 2, 3)
    assert log.first_unstable_offset == 0
    log.producers.transactions.high_watermark_moved(3)
    assert log.first_unstable_offset is None
    assert log.aborted_transactions(0, 3) == [AbortedTransaction(1, 0, 2, 3)]
    header, _ = kit.batches(log)[-1]
    assert header.is_control
    assert header.partition_leader_epoch == 4


def test_a_refused_marker_changes_nothing(kit) -> None:
    log = kit.log()
    kit.append(log, 1, producer_id=1, producer_epoch=1, base_sequence=0, is_transactional=True)
    with pytest.raises(KafkaError):
        log.append_marker(1, 0, 0, True, LeaderEpoch(0), kit.now_ms)
    assert log.log_end_offset == 1
    assert log.producers.is_in_transaction(1, 1)


def test_a_producer_is_in_a_transaction_with_the_epoch_that_it_has_there(kit) -> None:
    producers = Producers()
    producers.record(data(kit, epoch=3), 0, 0)
    assert [epoch for epoch in (2, 3, 4, 32_767) if producers.is_in_transaction(1, epoch)] == [3]
    end(producers, 1, committed=True, epoch=3)
    assert not producers.is_in_transaction(1, 3)


def test_a_transaction_whose_beginning_was_deleted_is_unstable_from_the_log_start_on(kit) -> None:
    log = kit.log()
    for sequence in range(3):
        kit.append(log, 1, producer_id=1, producer_epoch=0, base_sequence=sequence, is_transactional=True)
    log.delete_records_before(2)
    assert log.first_unstable_offset == 2
