import pickle

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from skep.client.errors import RowRefused
from skep.client.produce.partitioner import STRETCH_BYTES, Partitioner, rows_by_number


def test_the_same_key_goes_to_the_same_partition_whatever_is_around_it() -> None:
    keys = pa.array([b"a", b"b", None, b"a", b"", b"b"])
    chosen = Partitioner("t", 7).choose(keys, None, 6, 10)
    assert chosen[0] == chosen[3]
    assert chosen[1] == chosen[5]
    assert list(chosen[[0, 1, 4]]) == list(Partitioner("t", 7).choose(pa.array([b"a", b"b", b""]), None, 3, 10))


def test_a_given_partition_wins_over_the_key() -> None:
    keys, given_ones = pa.array([b"a", b"a", None, None]), pa.array([5, None, 6, None], pa.int32())
    chosen = Partitioner("t", 7).choose(keys, given_ones, 4, 10)
    by_key = Partitioner("t", 7).choose(keys, None, 4, 10)
    assert list(chosen) == [5, by_key[1], 6, 0]


@pytest.mark.parametrize("bad", [-1, 3, 2**40])
def test_a_partition_that_there_is_not_is_refused_with_its_row(bad: int) -> None:
    with pytest.raises(RowRefused, match=rf"row 2: topic 't' has partitions 0 to 2, not {bad}") as refused:
        Partitioner("t", 3).choose(None, pa.array([0, None, bad, 2], pa.int64()), 4, 10)
    assert refused.value.row == 2


def test_rows_without_a_key_go_in_stretches_by_turns() -> None:
    partitioner = Partitioner("t", 3)
    row_bytes = STRETCH_BYTES / 4
    chosen = [*partitioner.choose(None, None, 10, row_bytes), *partitioner.choose(None, None, 5, row_bytes)]
    assert chosen == [0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 0, 0, 0, 0, 1]


def test_rows_larger_than_a_stretch_are_dealt_out_one_by_one() -> None:
    assert list(Partitioner("t", 3).choose(None, None, 4, 10 * STRETCH_BYTES)) == [0, 1, 2, 0]


def test_no_rows_have_no_partitions() -> None:
    assert len(Partitioner("t", 3).choose(pa.array([], pa.binary()), None, 0, 0)) == 0
    assert rows_by_number(np.zeros(0, np.int32)) == []


@given(st.lists(st.integers(0, 5) | st.integers(0, 100_000), max_size=200))
def test_rows_are_grouped_by_number_and_keep_their_order(numbers: list[int]) -> None:
    expected = {
        number: [row for row, other in enumerate(numbers) if other == number] for number in sorted(set(numbers))
    }
    found = rows_by_number(np.array(numbers, np.int32))
    assert {number: list(rows) for number, rows in found} == expected


def test_a_refused_row_can_be_handed_to_another_process() -> None:
    copy = pickle.loads(pickle.dumps(RowRefused(7, "it has no topic")))
    assert (copy.row, str(copy)) == (7, "row 7: it has no topic")
