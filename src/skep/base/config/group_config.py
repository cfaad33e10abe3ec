"""The options of one group, under Kafka's names (KIP-848). Options that are not set have the broker's values.

Those of share groups are in ``share_group_config.py``. A group may have options of both kinds, whatever its type.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from skep.base.config.coordinator_config import CoordinatorConfig
from skep.base.config.option import Option, at_least, declared, option
from skep.base.config.share_group_config import SHARE_GROUP_OPTIONS
from skep.base.errors import OptionError


@dataclass(frozen=True)
class GroupConfig:
    consumer_session_timeout_ms: int = option(
        "consumer.session.timeout.ms",
        45_000,
        at_least(1),
        "The session timeout of the group's members.",
        broker_name="group.consumer.session.timeout.ms",
    )
    consumer_heartbeat_interval_ms: int = option(
        "consumer.heartbeat.interval.ms",
        5_000,
        at_least(1),
        "The heartbeat interval of the group's members.",
        broker_name="group.consumer.heartbeat.interval.ms",
    )


_CONSUMER_OPTIONS: Mapping[str, Option] = declared(GroupConfig)
GROUP_OPTIONS: Mapping[str, Option] = {**_CONSUMER_OPTIONS, **SHARE_GROUP_OPTIONS}


def group_config(overrides: Mapping[str, str], broker: CoordinatorConfig) -> GroupConfig:
    """Returns the options in force for a group. The broker's limits apply even if they were set after the override."""
    session, heartbeat = broker.group_consumer_session_timeout_ms, broker.group_consumer_heartbeat_interval_ms
    if overrides:
        limits = _limits(broker)
        session, heartbeat = (
            min(max(int(overrides.get(option.name, inherited)), low), high) if option.name in overrides else inherited
            for option, inherited, (low, high) in zip(
                _CONSUMER_OPTIONS.values(), (session, heartbeat), limits, strict=True
            )
        )
    return GroupConfig(session, heartbeat)


def check_group_config(overrides: Mapping[str, str], broker: CoordinatorConfig) -> None:
    """Raises OptionError if a value is outside the broker's limits, or the session is not longer than a heartbeat."""
    for option_, (low, high) in zip(_CONSUMER_OPTIONS.values(), _limits(broker), strict=True):
        text = overrides.get(option_.name)
        if text is not None and not low <= int(text) <= high:
            raise OptionError(f"{option_.name}={text}: must be between {low} and {high}")
    config = group_config(overrides, broker)
    if config.consumer_heartbeat_interval_ms >= config.consumer_session_timeout_ms:
        raise OptionError("consumer.session.timeout.ms must be greater than consumer.heartbeat.interval.ms")


def _limits(broker: CoordinatorConfig) -> tuple[tuple[int, int], tuple[int, int]]:
    return (
        (broker.group_consumer_min_session_timeout_ms, broker.group_consumer_max_session_timeout_ms),
        (broker.group_consumer_min_heartbeat_interval_ms, broker.group_consumer_max_heartbeat_interval_ms),
    )
