"""Merging state batches, against a model with one entry for each offset."""

from itertools import pairwise

from hypothesis import example, given
from hypothesis import strategies as st

from skep.coordination.share.share_state import DeliveryState, Reason, StateBatch
from skep.coordination.share.state_batches import merge
from tests.unit.coordination.share.scene import ACKNOWLEDGED, ARCHIVED, AVAILABLE

WRITTEN = [state for state in DeliveryState if state is not DeliveryState.ACQUIRED]


@st.composite
def batches(draw):
    first = draw(st.integers(0, 30))
    last = first + draw(st.integers(0, 8))
    more = draw(st.sampled_from([(), (), (1,), (2, 5_000), (1, 7_000, Reason.LIMIT), (0, 0, Reason.REJECTED)]))
    return StateBatch(first, last, draw(st.sampled_from(WRITTEN)), draw(st.integers(0, 3)), *more)


WRITES = st.lists(st.tuples(st.lists(batches(), max_size=6), st.integers(-1, 34)), max_size=8)


class Model:
    """The furthest state of each offset from the start on."""

    def __init__(self) -> None:
        self.states: dict[int, tuple[int, ...]] = {}
        self.start = -1

    def write(self, changes: list[StateBatch], start: int) -> None:
        self.start = max(self.start, start)
        for first, last, state, count, *more in changes:
            for offset in range(first, last + 1):
                self.states[offset] = max(self.states.get(offset, (-1,)), (count, state, *more))
        self.states = {offset: state for offset, state in self.states.items() if offset >= self.start}


def per_offset(kept: list[StateBatch]) -> dict[int, tuple[int, ...]]:
    return {
        offset: (count, state, *more) for first, last, state, count, *more in kept for offset in range(first, last + 1)
    }


@given(WRITES)
@example([([StateBatch(0, 0, AVAILABLE, 1), StateBatch(2, 2, AVAILABLE, 1), StateBatch(1, 1, AVAILABLE, 1)], -1)])
def test_merged_batches_are_the_furthest_state_of_each_offset(writes):
    model, kept = Model(), []
    for changes, start in writes:
        model.write(changes, start)
        merge(kept, changes, model.start)
        assert per_offset(kept) == model.states
        for before, after in pairwise(kept):
            assert before.last < after.first, "ascending and disjoint"
            assert before.last + 1 < after.first or before[2:] != after[2:], "neighbours of one state are one batch"
        assert all(batch.first <= batch.last for batch in kept)


@given(WRITES, st.randoms())
def test_writes_merge_to_the_same_in_any_order_and_any_number_of_times(writes, random):
    start = max((start for _, start in writes), default=-1)
    in_order, shuffled = [], []
    for changes, _ in writes:
        merge(in_order, changes, start)
    repeated = [batch for changes, _ in writes for batch in changes] * 2
    random.shuffle(repeated)
    merge(shuffled, repeated, start)
    assert shuffled == in_order


def test_a_write_splits_what_it_overlaps():
    kept = [StateBatch(10, 19, AVAILABLE, 1)]
    merge(kept, [StateBatch(15, 24, ACKNOWLEDGED, 1)], 0)
    assert kept == [StateBatch(10, 14, AVAILABLE, 1), StateBatch(15, 24, ACKNOWLEDGED, 1)]


def test_a_higher_count_beats_a_further_state():
    kept = [StateBatch(10, 10, ARCHIVED, 1)]
    merge(kept, [StateBatch(10, 10, AVAILABLE, 2)], 0)
    assert kept == [StateBatch(10, 10, AVAILABLE, 2)]


def test_of_the_same_delivery_the_one_with_more_failures_and_then_the_later_time_wins():
    kept = [StateBatch(10, 10, AVAILABLE, 2, 1, 9_000)]
    merge(kept, [StateBatch(10, 10, AVAILABLE, 2, 2, 5_000)], 0)
    merge(kept, [StateBatch(10, 10, AVAILABLE, 2, 2, 4_000)], 0)
    assert kept == [StateBatch(10, 10, AVAILABLE, 2, 2, 5_000)]


def test_a_range_of_two_to_the_62_offsets_is_one_batch():
    kept = [StateBatch(5, 5, ACKNOWLEDGED, 2)]
    merge(kept, [StateBatch(0, 1 << 62, AVAILABLE, 1)], 0)
    assert kept == [
        StateBatch(0, 4, AVAILABLE, 1),
        StateBatch(5, 5, ACKNOWLEDGED, 2),
        StateBatch(6, 1 << 62, AVAILABLE, 1),
    ]
