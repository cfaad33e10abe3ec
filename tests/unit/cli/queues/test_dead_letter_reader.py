"""Which dead letters a command is about, and which are redriven already."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skep.base.dead_letters import DeadLetter
from skep.cli.failures import UsageError
from skep.cli.queues.dead_letter_reader import LetterFilter, Redriven, parsed_offsets
from skep.cli.queues.redrive import ranges_of

LETTER = DeadLetter("g", "jobs", 3, 17, 5, "No such customer")


@pytest.mark.parametrize(
    ("wanted", "is_wanted"),
    [
        (LetterFilter("g"), True),
        (LetterFilter("h"), False),
        (LetterFilter("g", topic="jobs", partition=3), True),
        (LetterFilter("g", topic="other"), False),
        (LetterFilter("g", partition=0), False),
        (LetterFilter("g", offsets=[(1, 2), (10, 20)]), True),
        (LetterFilter("g", offsets=[(18, 20)]), False),
        (LetterFilter("g", reason="such CUSTOMER"), True),
        (LetterFilter("g", reason="timeout"), False),
        (LetterFilter("g", since_ms=1_000), True),
        (LetterFilter("g", since_ms=1_001), False),
    ],
)
def test_a_filter_wants_what_all_its_options_want(wanted: LetterFilter, is_wanted: bool) -> None:
    assert wanted.wants(LETTER, 1_000) is is_wanted


def test_offsets_are_numbers_or_ranges() -> None:
    assert parsed_offsets(["17", "10-20"]) == [(17, 17), (10, 20)]
    assert parsed_offsets([]) is None


@pytest.mark.parametrize("text", ["", "x", "-1", "1-", "5-3", "1-2-3", "٣"])
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--offset"):
        parsed_offsets([text])


@given(st.lists(st.sets(st.integers(0, 60), min_size=1), max_size=8))
def test_what_was_redriven_is_known(batches: list[set[int]]) -> None:
    redriven, known = Redriven(), set[int]()
    for batch in batches:
        fresh = batch - known
        redriven.add(ranges_of(sorted(fresh)))
        redriven.add(ranges_of(sorted(fresh)))
        known |= fresh
    assert {offset for offset in range(61) if offset in redriven} == known
