"""The headers of held records: what they mean, and that nothing in them is a crash."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skep.worker.held.plan import READ_HERE, YEAR_MS, Kind, Plan, Rules, passed_on, plan_of

NOW = 1_800_000_000_000
RULES = Rules()


def plan(rules=RULES, timestamp=NOW, **headers):
    pairs = [(name.replace("_", "-"), text.encode()) for name, text in headers.items()]
    return plan_of(pairs, timestamp, rules)


@pytest.mark.parametrize(
    ("headers", "due"),
    [
        ({"deliver_at": str(NOW + 5)}, NOW + 5),
        ({"deliver_at": "0"}, 0),
        ({"deliver_at": "2027-01-15T08:00:00Z"}, NOW),
        ({"deliver_at": "2027-01-15T09:00:00.250+01:00"}, NOW + 250),
        ({"delay_ms": "1500"}, NOW + 1500),
        ({"delay_ms": " 0 "}, NOW),
        ({"delay_ms": "-1500"}, NOW - 1500),
        ({"delay_ms": str(YEAR_MS)}, NOW + YEAR_MS),
    ],
)
def test_a_time(headers, due):
    assert plan(**headers) == Plan(Kind.DELIVER, due)


def test_a_schedule_fires_after_the_record_or_after_its_last_firing():
    assert plan(schedule="@every 1m") == Plan(Kind.REPEAT, NOW + 60_000)
    again = plan(schedule="@every 1m", fired_at=str(NOW + 60_000))
    assert again == Plan(Kind.REPEAT, NOW + 120_000, rate=1 / 60)
    assert plan(schedule="0 9 * * *", schedule_zone="Europe/Berlin") == Plan(Kind.REPEAT, NOW + 24 * 3_600_000)


def test_a_record_without_a_time_waits_for_its_commit():
    assert plan() == Plan(Kind.HALF, None)
    assert plan(deliver_key="k", other="x") == Plan(Kind.HALF, None)
    assert plan(commit="").kind is Kind.COMMIT


def test_a_record_without_a_commit_is_asked_about_until_the_attempts_are_used_up():
    asked = {"check_topic": "questions", "check_after_ms": "5000", "check_attempts": "2"}
    rolling = Rules(rolls_back_undecided=True)
    assert plan(**asked) == Plan(Kind.HALF, NOW + 5000)
    assert plan(**asked, checked=f"1 {NOW + 5000}") == Plan(Kind.HALF, NOW + 10_000)
    assert plan(**asked, checked=f"2 {NOW + 10_000}") == Plan(Kind.HALF, None)
    assert plan(rolling, **asked, checked=f"2 {NOW + 10_000}") == Plan(Kind.HALF, NOW + 15_000)


@pytest.mark.parametrize(
    ("headers", "reason"),
    [
        ({"deliver_at": "soon"}, "neither milliseconds nor a time"),
        ({"deliver_at": "2027-01-15T08:00:00"}, "needs a zone"),
        ({"deliver_at": "9999-12-31T23:59:59Z"}, "skep.held.max.delay.ms is"),
        ({"deliver_at": "9" * 30}, "neither milliseconds"),
        ({"delay_ms": "1.5"}, "not a number"),
        ({"delay_ms": "1_000"}, "not a number"),
        ({"delay_ms": "٣"}, "not a number"),
        ({"delay_ms": ""}, "not a number"),
        ({"delay_ms": str(YEAR_MS + 1)}, "skep.held.max.delay.ms is"),
        ({"delay_ms": "1", "deliver_at": "1"}, "only one of deliver-at and delay-ms"),
        ({"schedule": "0 0 30 2 *"}, "never fires"),
        ({"schedule": "hourly"}, "5 or 6 fields"),
        ({"schedule": "* * * * *", "schedule_zone": "Mars/Base"}, "no zone 'Mars/Base'"),
        ({"schedule": "@every 1h", "schedule_zone": "UTC"}, "@every has no zone"),
        ({"schedule": "@every 1h", "fired_at": "once"}, "fired-at is not a number"),
        ({"schedule": "@every 1h", "refused": "too many"}, "too many"),
        ({"check_topic": "q", "check_after_ms": "soon"}, "check-after-ms is not a number"),
        ({"check_topic": "q", "check_attempts": "many"}, "check-attempts is not a number"),
        ({"check_topic": "q", "checked": "x y"}, "checked is not a number"),
        ({"check_after_ms": "5000"}, "without check-topic"),
        ({"check_topic": ""}, "cannot be the name of a topic"),
        ({"check_topic": "no such/topic"}, "cannot be the name of a topic"),
        ({"check_topic": ".."}, "cannot be the name of a topic"),
        ({"check_topic": "q", "check_after_ms": "1"}, "must be from"),
        ({"check_topic": "q", "check_attempts": "0"}, "must be from"),
    ],
)
def test_what_cannot_be_followed_is_invalid_and_says_why(headers, reason):
    found = plan(**headers)
    assert (found.kind, found.due_ms) == (Kind.INVALID, None)
    assert reason in found.reason


def test_the_longest_delay_that_can_be_allowed_does_not_reach_the_year_9999():
    found = plan(Rules(max_delay_ms=3660 * 86_400_000), deliver_at="9999-12-31T23:59:59Z")
    assert (found.kind, found.due_ms) == (Kind.INVALID, None)


def test_questions_go_neither_to_the_held_topic_nor_to_its_target():
    rules = Rules(topic="later", target="orders")
    assert "the held topic itself" in plan(rules, check_topic="later").reason
    assert "would see it before its commit" in plan(rules, check_topic="orders").reason
    assert plan(rules, check_topic="questions").kind is Kind.HALF


def test_a_half_message_whose_questions_were_refused_still_waits_for_its_commit():
    assert plan(check_topic="q", refused="q is held") == Plan(Kind.HALF, None, "q is held")


def test_headers_that_are_no_text():
    assert plan_of([("delay-ms", b"\xff")], NOW, RULES).reason == "the header delay-ms is not text"
    assert plan_of([("delay-ms", None)], NOW, RULES).kind is Kind.INVALID
    assert plan_of([("other", b"\xff")], NOW, RULES).kind is Kind.HALF


def test_of_two_headers_with_one_name_the_last_counts():
    assert plan_of([("delay-ms", b"1"), ("delay-ms", b"2")], NOW, RULES).due_ms == NOW + 2


def test_the_headers_about_the_schedule_are_not_passed_on():
    headers = [("a", b"1"), ("deliver-at", b"2"), ("a", None), ("deliver-key", b"k")]
    assert passed_on(headers) == [("a", b"1"), ("a", None)]


texts = st.text(max_size=20) | st.integers().map(str) | st.sampled_from(["@every 1h", "* * * * *", "0 0 1 1 *"])
values = st.none() | st.binary(max_size=10) | texts.map(lambda text: text.encode(errors="replace"))


@given(
    st.lists(st.tuples(st.sampled_from(sorted(READ_HERE)) | st.text(max_size=3), values), max_size=5),
    st.integers(-(1 << 63), (1 << 63) - 1),
)
def test_any_headers_give_a_plan_that_fits_into_the_index(headers, timestamp):
    found = plan_of(headers, timestamp, RULES)
    assert found.due_ms is None or -(1 << 63) <= found.due_ms < 1 << 63
    assert (found.kind is Kind.INVALID) <= bool(found.reason) <= (found.kind in (Kind.INVALID, Kind.HALF))
