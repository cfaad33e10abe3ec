"""The judge of churn runs finds what is planted."""

from collections.abc import Mapping

import pytest

from tests.cluster.share_history import Place, ShareHistory

WRITTEN = {Place(0, 0): "a", Place(0, 1): "b"}
GOOD = ["got 0 0 1 a", "got 0 1 1 b", "says 0 0 accept", "says 0 1 accept", "confirmed 0"]
LIMIT = 3


def judged(*workers: list[str], leader_changes: int = 0, dead_letters: Mapping[Place, int] | None = None) -> list[str]:
    history = ShareHistory()
    for number, lines in enumerate(workers):
        history.add(f"w{number}", [f"{line}\n" for line in lines])
    found = history.violations(WRITTEN, LIMIT, {0: leader_changes}, dead_letters)
    return [one.partition(",")[0] for one in found]


def test_what_is_right_is_not_found() -> None:
    assert judged(GOOD) == []
    released = ["got 0 0 1 a", "says 0 0 release", "confirmed 0", "got 0 0 2 a", "says 0 0 reject", "confirmed 0"]
    assert judged(released, GOOD[1:2] + GOOD[3:]) == []


def test_an_acceptance_without_a_confirmation_may_have_taken_effect() -> None:
    assert judged(GOOD[:4]) == []
    assert judged(GOOD[:4], ["got 0 0 2 a", "says 0 0 accept", "confirmed 0"]) == []
    assert judged([*GOOD[:4], "refused 0 timed out"], ["got 0 0 2 a", "says 0 0 accept", "confirmed 0"]) == []


def test_a_line_that_is_cut_off_is_ignored() -> None:
    history = ShareHistory()
    history.add("w", ["got 0 0 1 a\n", "got 0 1 1"])
    assert list(history.deliveries) == [Place(0, 0)]


def test_a_record_at_the_limit_need_not_be_accepted() -> None:
    assert judged(["got 0 0 3 a", "says 0 0 release", "confirmed 0"], GOOD[1:2] + GOOD[3:]) == []


def test_the_refusals_are_counted() -> None:
    history = ShareHistory()
    history.add("w", ["got 0 0 1 a\n", "says 0 0 accept\n", "refused 0 too late\n"])
    assert history.refusals == {"too late": 1}
    assert history.confirmed_count == 0


@pytest.mark.parametrize(
    ("workers", "kind"),
    [
        ([[*GOOD[:1], "says 0 0 accept", "confirmed 0"]], "lost"),
        ([[*GOOD[:2], "says 0 0 accept", "says 0 1 release", "confirmed 0"]], "lost"),
        ([GOOD, ["got 0 0 1 a", "says 0 0 accept", "confirmed 0"]], "accepted twice"),
        ([GOOD, ["got 0 0 1 a", "says 0 0 reject", "confirmed 0"]], "accepted twice"),
        ([GOOD, ["got 0 0 2 a"]], "delivered again"),
        ([[*GOOD, "got 0 0 2 a"]], "delivered again"),
        ([GOOD, ["got 0 0 4 a"]], "count out of range"),
        ([GOOD, ["got 0 0 0 a"]], "count out of range"),
        ([GOOD, ["got 0 0 1 a"]], "count repeated"),
        ([["got 0 0 2 a", "says 0 0 release", "confirmed 0", "got 0 0 1 a"], GOOD], "count went back"),
        ([[*GOOD, "got 0 1 1 x"]], "content"),
    ],
)
def test_what_is_wrong_is_found(workers: list[list[str]], kind: str) -> None:
    assert kind in judged(*workers)


def test_a_count_may_be_repeated_by_a_new_leader() -> None:
    again = ["got 0 0 1 a", "got 0 1 1 b"]
    assert judged(again, GOOD, leader_changes=1) == []
    assert judged(again, again, GOOD, leader_changes=1) == ["count repeated"]


def test_dead_letters_are_of_what_was_not_accepted_and_one_of_each() -> None:
    rejected = [*GOOD[:2], "says 0 0 reject", "says 0 1 accept", "confirmed 0"]
    assert judged(rejected, dead_letters={Place(0, 0): 1}) == []
    assert judged(rejected, dead_letters={}) == ["lost"]
    assert judged(rejected, dead_letters={Place(0, 0): 2}) == ["two dead letters"]
    assert judged(rejected, dead_letters={Place(0, 0): 1, Place(0, 1): 1}) == ["a dead letter of an accepted record"]
    exhausted = ["got 0 0 3 a", "says 0 0 release", "confirmed 0"]
    assert judged(exhausted, GOOD[1:2] + GOOD[3:], dead_letters={}) == ["lost"]
    assert judged(exhausted, GOOD[1:2] + GOOD[3:], dead_letters={Place(0, 0): 1}) == []


def test_a_leader_that_was_frozen_may_deliver_beside_the_next_one() -> None:
    frozen = ["at 1", "got 0 0 2 a", "at 2", "says 0 0 accept", "refused 0 not the leader"]
    following = ["at 3", *GOOD[:2], "at 4", *GOOD[2:]]
    assert judged(frozen, following, leader_changes=1) == []
    assert judged(following, [line.replace("at 1", "at 5") for line in frozen], leader_changes=1) == ["delivered again"]


def ordered(*workers: list[str]) -> list[str]:
    """The records a1, a2 and b1 are of two keys."""
    history = ShareHistory()
    for number, lines in enumerate(workers):
        history.add(f"w{number}", [f"{line}\n" for line in lines])
    written = {Place(0, 0): "a1", Place(0, 1): "b1", Place(0, 2): "a2"}
    found = history.violations(written, LIMIT, {0: 5}, key_of=lambda value: value[0])
    return [one.partition(",")[0] for one in found]


def handled(place: int, value: str, since: int, until: int, *, count: int = 1, said: str = "accept") -> list[str]:
    return [f"at {since}", f"got 0 {place} {count} {value}", f"at {until}", f"says 0 {place} {said}", "confirmed 0"]


def test_records_of_a_key_come_one_after_the_other() -> None:
    b1 = handled(1, "b1", 0, 9)
    assert ordered([*handled(0, "a1", 1, 2), *handled(2, "a2", 2, 3)], b1) == []
    retried = [*handled(0, "a1", 1, 2, said="release"), *handled(0, "a1", 3, 4, count=2)]
    assert ordered([*retried, *handled(2, "a2", 5, 6)], b1) == []
    late = ["at 8", "got 0 0 1 a1", "at 9", "says 0 0 accept", "refused 0 too late"]
    assert ordered([*retried, *handled(2, "a2", 5, 6)], b1, late) == [], "it was delivered before, and seen late"


def test_a_record_that_overtakes_one_of_its_key_is_found() -> None:
    b1 = handled(1, "b1", 0, 9)
    assert ordered(handled(0, "a1", 1, 3), handled(2, "a2", 2, 4), b1) == ["order of a key"], "two are in flight"
    assert ordered(handled(0, "a1", 5, 6), handled(2, "a2", 2, 4), b1) == ["order of a key"], "in the wrong order"
    assert ordered(handled(0, "a1", 5, 6), ["at 2", "got 0 2 1 a2"], handled(2, "a2", 7, 8, count=2), b1) == [
        "order of a key"
    ]
    retried = [*handled(0, "a1", 1, 2, said="release"), *handled(0, "a1", 5, 6, count=2)]
    assert ordered(retried, handled(2, "a2", 3, 4), b1) == ["order of a key"], "between two deliveries"
    together = ["at 1", "got 0 0 1 a1", "got 0 2 1 a2", "at 2", "says 0 0 accept", "says 0 2 accept", "confirmed 0"]
    assert ordered(together, b1) == ["order of a key"]
