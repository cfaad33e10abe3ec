"""The options of share groups in force: set for the group, inherited from the broker, kept within its limits."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skep.base.config.retry_backoff import MOST_STEPS, RetryBackoff, retry_backoff
from skep.base.config.share_config import ShareConfig
from skep.base.config.share_group_config import duration_of_reset_ms, share_group_config
from skep.base.errors import OptionError


def test_a_group_has_the_values_of_the_broker_until_it_sets_its_own():
    broker = ShareConfig(delivery_count_limit=7, record_lock_duration_ms=20_000)
    config = share_group_config({"share.delivery.count.limit": "3", "share.auto.offset.reset": "earliest"}, broker)
    assert (config.delivery_count_limit, config.record_lock_duration_ms) == (3, 20_000)
    assert (config.auto_offset_reset, config.isolation_level) == ("earliest", "read_uncommitted")


def test_a_value_that_was_set_before_the_limits_stays_within_them():
    broker = ShareConfig(min_session_timeout_ms=50_000, max_delivery_count_limit=5)
    config = share_group_config({"share.session.timeout.ms": "45000", "share.delivery.count.limit": "9"}, broker)
    assert (config.session_timeout_ms, config.delivery_count_limit) == (50_000, 5)


def test_limits_do_not_apply_to_what_the_broker_itself_has():
    assert share_group_config({}, ShareConfig(session_timeout_ms=1)).session_timeout_ms == 1


@pytest.mark.parametrize(
    ("value", "milliseconds"),
    [
        ("by_duration:PT1H", 3_600_000),
        ("by_duration:P1DT0.5S", 86_400_500),
        ("by_duration:P", None),
        ("latest", None),
        ("PT1H", None),
    ],
)
def test_the_duration_of_a_reset(value, milliseconds):
    assert duration_of_reset_ms(value) == milliseconds


@pytest.mark.parametrize(
    ("text", "steps_ms"),
    [
        ("1s,5s,30s,2m,10m", (1_000, 5_000, 30_000, 120_000, 600_000)),
        ("250ms, 1h, 1d", (250, 3_600_000, 86_400_000)),
        ("exp:1s:2:10s", (1_000, 2_000, 4_000, 8_000, 10_000)),
        ("exp:100ms:1.5:300ms", (100, 150, 225, 300)),
        ("exp:1s:1:1s", (1_000,)),
    ],
)
def test_a_retry_backoff_is_steps_or_grows(text: str, steps_ms: tuple[int, ...]) -> None:
    config = share_group_config({"skep.share.retry.backoff": text}, ShareConfig())
    assert config.retry_backoff == RetryBackoff(steps_ms)
    assert config.counts_failures
    assert config.retry_backoff.delay_ms(1) == steps_ms[0]
    assert config.retry_backoff.delay_ms(100) == steps_ms[-1]


@given(st.integers(1, 10**6), st.floats(1, 100), st.integers(1, 10**6), st.integers(1, 100))
def test_delays_grow_up_to_the_longest_and_stay_there(
    first_ms: int, factor: float, more_ms: int, failures: int
) -> None:
    longest_ms = first_ms + more_ms
    backoff = retry_backoff(f"exp:{first_ms}ms:{factor:.3f}:{longest_ms}ms")
    assert backoff is not None
    steps = backoff.steps_ms
    assert steps == tuple(sorted(steps))
    assert steps[0] == first_ms
    assert steps[-1] <= longest_ms
    assert steps[-1] == longest_ms or len(steps) == MOST_STEPS
    assert backoff.delay_ms(failures) <= backoff.delay_ms(failures + 1) <= longest_ms


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("1", "'1' is not a duration"),
        ("1s,,2s", "'' is not a duration"),
        ("-1s", "'-1s' is not a duration"),
        ("0s", "between 1ms and 31d"),
        ("32d", "between 1ms and 31d"),
        ("9999999999d", "between 1ms and 31d"),
        (",".join(["1s"] * 33), "33 steps"),
        ("exp:1s:2", "exp:first:factor:longest"),
        ("exp:1s:0.5:10s", "from 1 to 100"),
        ("exp:1s:nan:10s", "from 1 to 100"),
        ("exp:10s:2:1s", "shorter than the first"),
        ("1s;5s", "is not a duration"),
        ("\u0661s", "is not a duration"),
    ],
)
def test_a_wrong_retry_backoff_is_refused_with_a_reason(text: str, problem: str) -> None:
    with pytest.raises(OptionError, match=re.escape(problem)):
        share_group_config({"skep.share.retry.backoff": text}, ShareConfig())


def test_kafkas_way_of_counting_is_the_default() -> None:
    config = share_group_config({}, ShareConfig())
    assert (config.retry_backoff, config.counts_failures) == (None, False)
    both = {"skep.share.retry.backoff": "1s", "skep.share.count.failures.only": "false"}
    assert not share_group_config(both, ShareConfig()).counts_failures
    assert share_group_config({"skep.share.count.failures.only": "true"}, ShareConfig()).counts_failures


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("skep.share.max.waiting.records", "99"),
        ("skep.share.max.waiting.records", "10001"),
        ("skep.share.record.ttl.ms", "-1"),
        ("skep.share.count.failures.only", "yes"),
    ],
)
def test_options_of_retries_out_of_range_are_refused(name: str, text: str) -> None:
    with pytest.raises(OptionError, match=re.escape(name)):
        share_group_config({name: text}, ShareConfig())
