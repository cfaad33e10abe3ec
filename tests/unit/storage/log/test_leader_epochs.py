"""Where leader epochs begin and end (KIP-101, KIP-279)."""

import pytest

from skep.storage.log.leader_epochs import LeaderEpochs


def test_the_end_of_an_epoch_is_the_start_of_the_next_known_one() -> None:
    epochs = LeaderEpochs([(0, 0), (2, 10), (5, 30)])
    assert epochs.end_offset_for(0, 50) == (0, 10)
    assert epochs.end_offset_for(1, 50) == (0, 10), "epoch 1 wrote nothing"
    assert epochs.end_offset_for(2, 50) == (2, 30)
    assert epochs.end_offset_for(4, 50) == (2, 30)
    assert epochs.end_offset_for(5, 50) == (5, 50), "the current one ends at the log end"


def test_unknown_epochs_have_no_end() -> None:
    epochs = LeaderEpochs([(2, 10)])
    assert epochs.end_offset_for(3, 50) == (-1, -1)
    assert epochs.end_offset_for(-1, 50) == (-1, -1)
    assert LeaderEpochs().end_offset_for(0, 50) == (-1, -1)


def test_an_epoch_below_all_ends_where_the_log_begins() -> None:
    assert LeaderEpochs([(2, 10), (3, 20)]).end_offset_for(1, 50) == (1, 10)


def test_an_epoch_is_entered_once() -> None:
    epochs = LeaderEpochs()
    epochs.assign(0, 0)
    epochs.assign(0, 5)
    epochs.assign(3, 9)
    assert epochs.entries == [(0, 0), (3, 9)]
    assert epochs.latest == 3


def test_entries_that_contradict_a_new_one_go() -> None:
    epochs = LeaderEpochs([(0, 0), (3, 10), (4, 20)])
    epochs.assign(3, 10)
    assert epochs.entries == [(0, 0), (3, 10)]
    epochs.assign(6, 10)
    assert epochs.entries == [(0, 0), (6, 10)]


def test_moving_the_log_start_keeps_the_epoch_it_lies_in() -> None:
    epochs = LeaderEpochs([(0, 0), (2, 10), (5, 30)])
    epochs._truncate_start(0)
    assert not epochs.is_changed
    epochs._truncate_start(15)
    assert epochs.entries == [(2, 15), (5, 30)]
    assert epochs.is_changed
    epochs._truncate_start(30)
    assert epochs.entries == [(5, 30)]
    epochs._truncate_start(99)
    assert epochs.entries == [(5, 99)]
    assert epochs.latest == 5


def test_cutting_the_end_drops_epochs_that_have_nothing_left() -> None:
    epochs = LeaderEpochs([(0, 0), (2, 10), (5, 30)])
    epochs.truncate_end(31)
    assert not epochs.is_changed
    epochs.truncate_end(30)
    assert epochs.entries == [(0, 0), (2, 10)]
    assert epochs.latest == 2
    epochs.truncate_end(0)
    assert epochs.entries == []
    assert epochs.latest == -1


def test_the_file_is_kafkas() -> None:
    epochs = LeaderEpochs([(0, 0), (3, 1042)])
    assert epochs.encode() == b"0\n2\n0 0\n3 1042\n"
    assert LeaderEpochs.decode(epochs.encode()).entries == epochs.entries
    assert LeaderEpochs.decode(b"0\n0\n").entries == []


@pytest.mark.parametrize("data", [b"", b"0\n", b"1\n0\n", b"0\n2\n0 0\n", b"0\n1\n0\n", b"0\n1\nx y\n", b"\xff\xff"])
def test_other_files_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError):
        LeaderEpochs.decode(data)
