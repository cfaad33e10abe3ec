import logging

import pytest

from skep.base.loop.log_limit import PERIOD_S, REASONS, SAME_REASON, LogLimit
from tests.manual_clock import ManualClock

logger = logging.getLogger("skep.test")


def test_the_same_reason_is_logged_a_few_times_and_then_counted(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    limit = LogLimit(clock)
    for _ in range(SAME_REASON + 5):
        limit.warning(logger, "refused %s: %s", "a", "wrong")
    limit.warning(logger, "refused %s: %s", "b", "other")
    assert caplog.messages == ["refused a: wrong"] * SAME_REASON + ["refused b: other"]
    caplog.clear()
    clock.advance_ms(int(PERIOD_S * 1000))
    limit.warning(logger, "refused %s: %s", "a", "wrong")
    assert caplog.messages == ["5 more clients were refused for reasons as these", "refused a: wrong"]


def test_reasons_without_end_are_limited_too(caplog: pytest.LogCaptureFixture) -> None:
    limit = LogLimit(ManualClock())
    for number in range(10 * REASONS):
        limit.warning(logger, "refused %s: %s", "a", str(number))
    assert len(caplog.messages) == REASONS
