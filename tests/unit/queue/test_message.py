"""What a handler raises, and what that means for its record."""

import pytest

from skep.queue.message import LONGEST_REASON, Message, Outcome, Reject, RetryLater, Verdict, describe, verdict_of

MESSAGE = Message("jobs", 0, 7, None, b"x", (("a", b"1"), ("b", None), ("a", b"2")), 1000)


def test_the_last_header_of_a_name_counts() -> None:
    assert MESSAGE.header("a") == b"2"
    assert MESSAGE.header("b") is None
    assert MESSAGE.header("c") is None


def test_any_exception_means_again_with_the_reason() -> None:
    assert verdict_of(ValueError("no such customer")) == Verdict(Outcome.RETRY, "ValueError: no such customer")
    assert verdict_of(KeyboardInterrupt()) == Verdict(Outcome.RETRY, "KeyboardInterrupt")


def test_reject_means_never_again() -> None:
    assert verdict_of(Reject("not JSON")) == Verdict(Outcome.REJECT, "not JSON")
    assert verdict_of(Reject()) == Verdict(Outcome.REJECT, "rejected")


def test_retry_later_says_when() -> None:
    assert verdict_of(RetryLater(1.5, "the bank is closed")) == Verdict(Outcome.RETRY, "the bank is closed", 1500)
    assert verdict_of(RetryLater(0)).delay_ms == 0
    with pytest.raises(ValueError, match="seconds=-1"):
        RetryLater(-1)


def test_a_reason_has_a_bound() -> None:
    for error in (ValueError("x" * 5000), Reject("x" * 5000), RetryLater(1, "x" * 5000)):
        assert len(verdict_of(error).reason) == LONGEST_REASON
    assert describe(ValueError()) == "ValueError"
