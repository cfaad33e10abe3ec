"""The options of share groups in force: set for the group, inherited from the broker, kept within its limits."""

import pytest

from skep.base.config.share_config import ShareConfig
from skep.base.config.share_group_config import duration_of_reset_ms, share_group_config


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
