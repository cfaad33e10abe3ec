"""The judge of the fault runs: each kind of violation, planted, is found; a history without one passes."""

import pytest

from tests.cluster.history import Found, History, identity

A1, A2, A3, B1 = identity(1, 1), identity(1, 2), identity(1, 3), identity(2, 1)


def log_of(*records: int, epoch: int = 0) -> list[Found]:
    return [Found(offset, record, epoch) for offset, record in enumerate(records)]


def kinds(history: History) -> list[str]:
    return [violation.kind for violation in history.violations]


def test_a_history_that_keeps_the_rules_has_no_violation() -> None:
    history = History()
    for offset, record in enumerate([A1, B1, A2]):
        history.acknowledged(record, 0, offset, at=1.0)
        history.read(1, 0, offset, record, at=2.0)
    history.unknown()
    history.failed(identity(9, 9))
    history.ended(0, log_of(A1, B1, A2, A3))
    assert history.violations == []
    assert (history.acknowledged_count, history.read_count, history.unknown_count, history.failed_count) == (3, 3, 1, 1)


@pytest.mark.parametrize("content", [[], [B1]], ids=["gone", "another in its place"])
def test_an_acknowledged_record_that_is_not_at_its_offset_is_found(content: list[int]) -> None:
    history = History()
    history.acknowledged(A1, 0, 0, at=1.0)
    history.ended(0, log_of(*content))
    assert kinds(history) == ["acknowledged and lost"]


def test_an_acknowledged_record_that_moved_is_found() -> None:
    history = History()
    history.acknowledged(A2, 0, 0, at=1.0)
    history.ended(0, log_of(A1, A2))
    assert kinds(history) == ["acknowledged and lost"]


def test_a_record_that_was_acknowledged_without_an_offset_has_to_be_somewhere() -> None:
    history = History()
    history.acknowledged_somewhere(A1, 0)
    history.acknowledged_somewhere(A3, 0)
    history.ended(0, log_of(B1, A1))
    assert [tuple(violation) for violation in history.violations] == [("acknowledged and lost", "1:3 is not in 0")]


def test_one_offset_acknowledged_for_two_records_is_found_at_once() -> None:
    history = History()
    history.acknowledged(A1, 0, 7, at=1.0)
    history.acknowledged(A2, 0, 7, at=2.0)
    assert kinds(history) == ["one offset acknowledged twice"]


def test_a_record_that_was_read_and_is_gone_is_found() -> None:
    history = History()
    history.read(1, 0, 0, A1, at=1.0)
    history.read(1, 0, 1, A2, at=1.0)
    history.ended(0, log_of(A1))
    assert kinds(history) == ["read and gone"]


def test_two_readers_that_read_different_records_at_one_offset_are_found_at_once() -> None:
    history = History()
    history.read(1, 0, 0, A1, at=1.0)
    history.read(2, 0, 0, B1, at=2.0)
    assert kinds(history) == ["read differently"]


@pytest.mark.parametrize("offset", [4, 5], ids=["back", "the same again"])
def test_a_reader_whose_offsets_do_not_increase_is_found(offset: int) -> None:
    history = History()
    history.read(1, 0, 5, A1, at=1.0)
    history.read(1, 0, offset, A1, at=2.0)
    assert kinds(history) == ["read backwards"]


def test_a_reader_may_go_back_when_it_says_so() -> None:
    history = History()
    history.read(1, 0, 0, A1, at=1.0)
    history.moved(1, 0, 0)
    history.read(1, 0, 0, A1, at=2.0)
    assert history.violations == []


def test_a_record_that_is_there_twice_is_found() -> None:
    history = History()
    history.ended(0, log_of(A1, A2, A1))
    assert kinds(history) == ["there twice"]


def test_a_record_that_a_producer_sent_again_under_a_new_epoch_is_counted_and_no_fault_of_the_broker() -> None:
    history = History(one_at_a_time=[2])
    history.ended(0, [Found(0, A1, 0), Found(1, A2, 0), Found(2, A1, 1), Found(3, A3, 1)])
    assert history.violations == []
    assert history.sent_again_count == 1


def test_one_request_at_a_time_leaves_no_excuse_for_a_record_that_is_there_twice() -> None:
    history = History(one_at_a_time=[1])
    history.ended(0, [Found(0, A1, 0), Found(1, A1, 1)])
    assert kinds(history) == ["there twice"]


def test_records_of_one_producer_out_of_order_are_found_and_those_of_two_may_mix() -> None:
    history = History()
    history.ended(0, log_of(A1, B1, A3, A2))
    assert kinds(history) == ["out of order"]


def test_a_record_that_failed_for_certain_and_is_there_is_found() -> None:
    history = History()
    history.failed(A1)
    history.ended(0, log_of(A1))
    assert kinds(history) == ["there although it failed"]


def test_a_gap_in_the_offsets_is_found() -> None:
    history = History()
    history.ended(0, [Found(0, A1), Found(2, A2)])
    assert kinds(history) == ["a gap"]


def test_partitions_are_told_apart() -> None:
    history = History()
    history.acknowledged(A1, 0, 0, at=1.0)
    history.acknowledged(A2, 1, 0, at=1.0)
    history.ended(0, log_of(A1))
    history.ended(1, log_of(A2))
    assert history.violations == []


def test_many_violations_of_one_kind_are_told_in_few_lines() -> None:
    history = History()
    for offset in range(1000):
        history.acknowledged(identity(1, offset), 0, offset, at=1.0)
    history.ended(0, [])
    assert 2 < len(history.violations) < 10
