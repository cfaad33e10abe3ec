"""The options of one share group, under Kafka's names (KIP-932, KIP-1240). Most have the broker's values if not set.

Those that begin with ``skep.`` are Skep's own.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from skep.base.config.option import Option, OptionType, anything, at_least, between, declared, one_of, option
from skep.base.config.retry_backoff import RetryBackoff, retry_backoff
from skep.base.config.share_config import ShareConfig
from skep.base.errors import OptionError
from skep.base.iso_duration import iso_duration_ms

EARLIEST, LATEST = "earliest", "latest"
BY_DURATION = "by_duration:"
BATCH_OPTIMIZED, RECORD_LIMIT = "batch_optimized", "record_limit"
ANY_ORDER, KEY_ORDER = "none", "key"
SHARED, EXCLUSIVE, FAILOVER = "shared", "exclusive", "failover"


def _offset_reset(value: str) -> str | None:
    if value in (EARLIEST, LATEST) or duration_of_reset_ms(value) is not None:
        return None
    return f"must be {EARLIEST}, {LATEST} or {BY_DURATION}PnDTnHnMn.nS"


def duration_of_reset_ms(value: str) -> int | None:
    """Returns how far back a ``share.auto.offset.reset`` of the kind ``by_duration:PT1H`` goes, None for the others."""
    return iso_duration_ms(value.removeprefix(BY_DURATION)) if value.startswith(BY_DURATION) else None


_MAX_CLASSES = 100
_MAX_WEIGHT = 1000
_PRIORITY = re.compile(r"([a-zA-Z0-9._-]{1,249})(?::([0-9]{1,4}))?")


def _priority(value: tuple[str, ...]) -> str | None:
    """Checks topics in the order of their priority, all of them with a weight or none."""
    found = [_PRIORITY.fullmatch(part) for part in value]
    if not all(found):
        return "must be a list of TOPIC, or of TOPIC:WEIGHT"
    topics, weights = {one[1] for one in found if one}, [one[2] for one in found if one and one[2]]
    if len(topics) < len(value) or len(topics) > _MAX_CLASSES:
        return f"must have different topics, {_MAX_CLASSES} at the most"
    if len(weights) not in (0, len(value)):
        return "must give a weight to all topics, or to none"
    if not all(1 <= int(weight) <= _MAX_WEIGHT for weight in weights):
        return f"must have weights between 1 and {_MAX_WEIGHT}"
    return None


def _retry_backoff(value: str) -> str | None:
    try:
        retry_backoff(value)
    except ValueError as error:
        return str(error)
    return None


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
        "The most records of one partition that the share group has acquired and not finished, or has to acquire again "
        "at once. With so many, no new records are delivered.",
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
    acquire_mode: str = option(
        "skep.share.acquire.mode",
        BATCH_OPTIMIZED,
        one_of(BATCH_OPTIMIZED, RECORD_LIMIT),
        "How many records a member gets that cannot say so itself (ShareFetch version 1, as librdkafka sends it): "
        "whole batches of the log, or no more than it asks for (KIP-1206).",
    )
    dead_letter_topic: str = option(
        "errors.deadletterqueue.topic.name",
        "",
        _dead_letter_topic,
        "The topic that gets a dead letter for each record that is rejected or fails too often (KIP-1191). Empty: such "
        "records are dropped. The name begins with errors.deadletterqueue.topic.name.prefix, and the topic has "
        "errors.deadletterqueue.group.enable=true.",
    )
    dead_letter_copy_record: bool = option(
        "errors.deadletterqueue.copy.record.enable",
        False,
        anything,
        "Whether a dead letter has the key, the value and the headers of the record (KIP-1191).",
    )
    breaker_percent: int = option(
        "skep.share.breaker.percent",
        0,
        between(0, 99),
        "Delivery of a partition pauses when more than this percentage of the records that it has finished in "
        "skep.share.breaker.window.ms have died. 0: never.",
    )
    breaker_window_ms: int = option(
        "skep.share.breaker.window.ms",
        60_000,
        between(1_000, 3_600_000),
        "The time that skep.share.breaker.percent looks back.",
    )
    breaker_min_records: int = option(
        "skep.share.breaker.min.records",
        20,
        between(1, 1_000_000),
        "skep.share.breaker.percent says nothing of fewer finished records than this.",
    )
    breaker_pause_ms: int = option(
        "skep.share.breaker.pause.ms",
        30_000,
        between(100, 3_600_000),
        "How long skep.share.breaker.percent pauses delivery. Then single records are tried: one that is accepted ends "
        "the pause, one that dies begins the next.",
    )
    members: str = option(
        "skep.share.members",
        SHARED,
        one_of(SHARED, EXCLUSIVE, FAILOVER),
        "Which members get records. shared: all of them. failover: the one that came first; the others are stand-bys, "
        "in the order in which they came. exclusive: as failover, and nobody may join while the group has a member.",
    )
    ttl_header_enable: bool = option(
        "skep.share.record.ttl.header.enable",
        False,
        anything,
        "Whether the header ttl-ms of a record says how many milliseconds after its timestamp it is delivered at the "
        "latest. Later it is done without success, or goes to the dead-letter topic. The broker looks into all records "
        "of such a group.",
    )
    order: str = option(
        "skep.share.order",
        ANY_ORDER,
        one_of(ANY_ORDER, KEY_ORDER),
        "key: records with the same key are delivered in the order of their offsets, one at a time: the next one when "
        "the one before is done with. The broker reads the keys, and looks share.partition.max.record.locks records "
        "ahead. none: no order, as in Kafka.",
    )
    priority: tuple[str, ...] = option(
        "skep.share.priority",
        (),
        _priority,
        "Topics in the order of their priority. As a list of names: records of a topic are delivered when those before "
        "have none. With weights (orders.high:8,orders:4,orders.low:1): all are delivered, in about these proportions. "
        "Topics that are not named come last, with the weight 1.",
    )

    # Beyond Kafka: retries.
    retry_backoff_text: str = option(
        "skep.share.retry.backoff",
        "",
        _retry_backoff,
        "How long a record waits after a failed delivery before it is delivered again: a list such as "
        "1s,5s,30s,2m,10m, whose last step repeats, or exp:1s:2:10m. Empty: it does not wait, as in Kafka.",
    )
    count_failures_only: str = option(
        "skep.share.count.failures.only",
        "auto",
        one_of("auto", "true", "false"),
        "Whether only deliveries that fail (rejected, released, lock expired) count towards "
        "share.delivery.count.limit. Those that end because the member or its connection is gone then do not; four "
        "times the limit ends them too. auto: if skep.share.retry.backoff is set. false: all count, as in Kafka.",
    )
    max_waiting_records: int = option(
        "skep.share.max.waiting.records",
        10_000,
        between(100, 10_000),
        "The most records of one partition that wait for their next delivery. With so many, no new records are "
        "delivered.",
    )
    record_ttl_ms: int = option(
        "skep.share.record.ttl.ms",
        0,
        at_least(0),
        "Records that are older, by the newest timestamp in their batch, are not delivered; they are done without "
        "success, or go to the dead-letter topic. 0: records of any age are delivered.",
        type=OptionType.LONG,
    )

    @property
    def retry_backoff(self) -> RetryBackoff | None:
        return retry_backoff(self.retry_backoff_text)

    @property
    def counts_failures(self) -> bool:
        if self.count_failures_only == "auto":
            return bool(self.retry_backoff_text)
        return self.count_failures_only == "true"


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
    """Raises OptionError if a value is outside the broker's limits, contradicts another one, or cannot be the name of a
    dead-letter topic."""
    for option_ in SHARE_GROUP_OPTIONS.values():
        text = overrides.get(option_.name)
        if text is None or option_.field not in _LIMITED:
            continue
        low, high = _limits(option_, broker)
        if not low <= int(text) <= high:
            raise OptionError(f"{option_.name}={text}: must be between {low} and {high}")
    config = share_group_config(overrides, broker)
    if (problem := dead_letter_name_problem(config.dead_letter_topic, broker)) is not None:
        raise OptionError(f"errors.deadletterqueue.topic.name={config.dead_letter_topic}: {problem}")
    if config.heartbeat_interval_ms >= config.session_timeout_ms:
        raise OptionError("share.session.timeout.ms must be greater than share.heartbeat.interval.ms")


def dead_letter_name_problem(name: str, broker: ShareConfig) -> str | None:
    """Returns why no dead-letter topic may have this name; the prefix may have been set after the name."""
    if name and not name.startswith(broker.dead_letter_prefix):
        prefix = broker.dead_letter_prefix
        return f"must begin with {prefix} (errors.deadletterqueue.topic.name.prefix), for example {prefix}{name}"
    return None


def _limits(option_: Option, broker: ShareConfig) -> tuple[int, int]:
    return getattr(broker, f"min_{option_.field}"), getattr(broker, f"max_{option_.field}")
