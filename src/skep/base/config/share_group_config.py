"""The options of one share group, under Kafka's names (KIP-932, KIP-1240). Most have the broker's values if not set.

``errors.deadletterqueue.*`` (KIP-1191) is stored and described. Nothing is written to a dead-letter topic yet.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from skep.base.config.option import Option, anything, at_least, declared, one_of, option
from skep.base.config.share_config import ShareConfig
from skep.base.errors import OptionError
from skep.base.iso_duration import iso_duration_ms

EARLIEST, LATEST = "earliest", "latest"
BY_DURATION = "by_duration:"


def _offset_reset(value: str) -> str | None:
    if value in (EARLIEST, LATEST) or duration_of_reset_ms(value) is not None:
        return None
    return f"must be {EARLIEST}, {LATEST} or {BY_DURATION}PnDTnHnMn.nS"


def duration_of_reset_ms(value: str) -> int | None:
    """Returns how far back a ``share.auto.offset.reset`` of the kind ``by_duration:PT1H`` goes, None for the others."""
    return iso_duration_ms(value.removeprefix(BY_DURATION)) if value.startswith(BY_DURATION) else None


def _dead_letter_topic(value: str) -> str | None:
    return "must not begin with __, as internal topics do" if value.startswith("__") else None


@dataclass(frozen=True)
class ShareGroupConfig:
    session_timeout_ms: int = option(
        "share.session.timeout.ms",
        45_000,
        at_least(1),
        "The session timeout of the share group's members.",
        broker_name="group.share.session.timeout.ms",
    )
    heartbeat_interval_ms: int = option(
        "share.heartbeat.interval.ms",
        5_000,
        at_least(1),
        "The heartbeat interval of the share group's members.",
        broker_name="group.share.heartbeat.interval.ms",
    )
    assignment_interval_ms: int = option(
        "share.assignment.interval.ms",
        1_000,
        at_least(0),
        "The shortest time between two target assignments of the share group.",
        broker_name="group.share.assignment.interval.ms",
    )
    assignor_offload_enable: bool = option(
        "share.assignor.offload.enable",
        True,
        anything,
        "Kafka: whether assignments are computed in another thread. No effect here.",
        broker_name="group.share.assignor.offload.enable",
    )
    record_lock_duration_ms: int = option(
        "share.record.lock.duration.ms",
        30_000,
        at_least(1_000),
        "How long a member may hold a record before it is delivered again.",
        broker_name="group.share.record.lock.duration.ms",
    )
    delivery_count_limit: int = option(
        "share.delivery.count.limit",
        5,
        at_least(2),
        "How often a record is delivered before it is archived.",
        broker_name="group.share.delivery.count.limit",
    )
    partition_max_record_locks: int = option(
        "share.partition.max.record.locks",
        2_000,
        at_least(100),
        "The most offsets of one partition between the first record that the share group has not finished and the "
        "last one that it has acquired.",
        broker_name="group.share.partition.max.record.locks",
    )
    auto_offset_reset: str = option(
        "share.auto.offset.reset",
        LATEST,
        _offset_reset,
        "Where the share group begins in a partition that it has no state of: latest, earliest, or "
        "by_duration:PT1H for the records of the last hour.",
    )
    isolation_level: str = option(
        "share.isolation.level",
        "read_uncommitted",
        one_of("read_committed", "read_uncommitted"),
        "Whether records of open and aborted transactions are delivered.",
    )
    renew_acknowledge_enable: bool = option(
        "share.renew.acknowledge.enable", True, anything, "Whether a member may renew the lock of a record (KIP-1222)."
    )
    dead_letter_topic: str = option(
        "errors.deadletterqueue.topic.name",
        "",
        _dead_letter_topic,
        "The dead-letter topic of the share group (KIP-1191). Stored only: no records are written to it yet.",
    )
    dead_letter_copy_record: bool = option(
        "errors.deadletterqueue.copy.record.enable",
        False,
        anything,
        "Whether the dead-letter topic gets a copy of the record (KIP-1191). Stored only.",
    )


SHARE_GROUP_OPTIONS: Mapping[str, Option] = declared(ShareGroupConfig)

_LIMITED = (
    "session_timeout_ms",
    "heartbeat_interval_ms",
    "assignment_interval_ms",
    "record_lock_duration_ms",
    "delivery_count_limit",
    "partition_max_record_locks",
)
_INHERITED = (*_LIMITED, "assignor_offload_enable")


def share_group_config(overrides: Mapping[str, str], broker: ShareConfig) -> ShareGroupConfig:
    """Returns the options in force for a group. The broker's limits apply even if they were set after the override."""
    values = {field: getattr(broker, field) for field in _INHERITED}
    for option_ in SHARE_GROUP_OPTIONS.values() if overrides else ():
        if (text := overrides.get(option_.name)) is None:
            continue
        value = option_.parse(text)
        if option_.field in _LIMITED:
            low, high = _limits(option_, broker)
            value = min(max(value, low), high)
        values[option_.field] = value
    return ShareGroupConfig(**values)


def check_share_group_config(overrides: Mapping[str, str], broker: ShareConfig) -> None:
    """Raises OptionError if a value is outside the broker's limits, or the session is not longer than a heartbeat."""
    for option_ in SHARE_GROUP_OPTIONS.values():
        text = overrides.get(option_.name)
        if text is None or option_.field not in _LIMITED:
            continue
        low, high = _limits(option_, broker)
        if not low <= int(text) <= high:
            raise OptionError(f"{option_.name}={text}: must be between {low} and {high}")
    config = share_group_config(overrides, broker)
    if config.heartbeat_interval_ms >= config.session_timeout_ms:
        raise OptionError("share.session.timeout.ms must be greater than share.heartbeat.interval.ms")


def _limits(option_: Option, broker: ShareConfig) -> tuple[int, int]:
    return getattr(broker, f"min_{option_.field}"), getattr(broker, f"max_{option_.field}")
