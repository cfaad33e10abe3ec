"""The headers of dead letters and of marks: what is written is read, and strange ones are no dead letters."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skep.base.dead_letters import (
    COPIED,
    GROUP,
    MAX_REASON_CHARACTERS,
    OFFSET,
    PARTITION,
    REDRIVE,
    TOPIC,
    DeadLetter,
    RedriveMark,
    dead_letter,
    original_headers,
    redrive_mark,
    short_name,
)

LETTER = DeadLetter("g", "jobs", 3, 17, 5, "no such customer", "id", 1_700_000_000_000, COPIED)
NUMBERS = st.integers(0, (1 << 63) - 1)
TEXTS = st.text(max_size=50)
SOME_TEXT = st.text(min_size=1, max_size=50)


@given(st.builds(DeadLetter, SOME_TEXT, SOME_TEXT, NUMBERS, NUMBERS, NUMBERS, TEXTS, TEXTS, NUMBERS, SOME_TEXT))
def test_what_is_written_is_read(letter: DeadLetter) -> None:
    if "-1" not in letter:
        assert dead_letter(letter.headers()) == letter


def test_the_names_and_texts_are_kafkas() -> None:
    assert LETTER.headers()[:6] == [
        ("__dlq.errors.topic", b"jobs"),
        ("__dlq.errors.partition", b"3"),
        ("__dlq.errors.offset", b"17"),
        ("__dlq.errors.group", b"g"),
        ("__dlq.errors.delivery.count", b"5"),
        ("__dlq.errors.message", b"no such customer"),
    ]


def test_a_letter_that_kafka_wrote_is_understood() -> None:
    letter = dead_letter(LETTER.headers()[:6])
    assert letter == DeadLetter("g", "jobs", 3, 17, 5, "no such customer")
    assert not letter.has_copy


def test_a_dead_letter_of_a_dead_letter_is_about_the_latter() -> None:
    inner, outer = LETTER, LETTER._replace(group="h", topic="dlq.g", offset=0)
    headers = [("trace", b"1"), *inner.headers(), *outer.headers()]
    assert dead_letter(headers) == outer
    assert original_headers(headers) == [("trace", b"1"), *inner.headers()]


def test_a_long_reason_is_cut() -> None:
    letter = dead_letter(LETTER._replace(reason="x" * 5_000).headers())
    assert letter is not None
    assert len(letter.reason) == MAX_REASON_CHARACTERS


@pytest.mark.parametrize(
    "changed",
    [(GROUP, b""), (TOPIC, None), (PARTITION, b"-1"), (PARTITION, b"x"), (OFFSET, b"1e3"), (OFFSET, b"9" * 30)],
)
def test_a_record_with_strange_headers_is_no_dead_letter(changed: tuple[str, bytes | None]) -> None:
    assert dead_letter([*LETTER.headers(), changed]) is None


def test_a_mark_is_read_and_strange_ones_are_none() -> None:
    mark = RedriveMark("g", False, [(3, 5)], "jobs", 0, [(17, 17)], "0.2", "id")
    assert redrive_mark(mark.headers()) == mark
    assert redrive_mark(LETTER.headers()) is None
    assert dead_letter(mark.headers()) is None
    for text in (b"", b"{}", b"[1]", b'{"group": "g"}', b"\xff", mark.headers()[0][1][:-2]):  # type: ignore[index]
        assert redrive_mark([(REDRIVE, text)]) is None


@pytest.mark.parametrize("group", ["g", "g" * 200, "g" * 1_000, "ü" * 500])
def test_a_long_name_of_a_group_becomes_a_short_one(group: str) -> None:
    assert len(short_name(group).encode()) <= 200
    assert short_name(group) != short_name(f"{group}2")
