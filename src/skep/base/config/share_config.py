"""The section ``share`` of the broker options: share groups (KIP-932) and the limits of their options (KIP-1240)."""

from dataclasses import dataclass

from skep.base.config.option import anything, at_least, between, each_of, option

SHARE_ASSIGNORS = ("simple",)
"""The assignors of share groups. Kafka has this one."""


@dataclass(frozen=True)
class ShareConfig:
    session_timeout_ms: int = option(
        "group.share.session.timeout.ms", 45_000, at_least(1), "The session timeout of members of a share group."
    )
    min_session_timeout_ms: int = option(
        "group.share.min.session.timeout.ms",
        45_000,
        at_least(1),
        "The shortest session timeout that a share group may set for itself.",
    )
    max_session_timeout_ms: int = option(
        "group.share.max.session.timeout.ms",
        60_000,
        at_least(1),
        "The longest session timeout that a share group may set for itself.",
    )
    heartbeat_interval_ms: int = option(
        "group.share.heartbeat.interval.ms", 5_000, at_least(1), "The heartbeat interval of members of a share group."
    )
    min_heartbeat_interval_ms: int = option(
        "group.share.min.heartbeat.interval.ms",
        5_000,
        at_least(1),
        "The shortest heartbeat interval that a share group may set for itself.",
    )
    max_heartbeat_interval_ms: int = option(
        "group.share.max.heartbeat.interval.ms",
        15_000,
        at_least(1),
        "The longest heartbeat interval that a share group may set for itself.",
    )
    max_size: int = option("group.share.max.size", 200, between(1, 1_000), "The most members of one share group.")
    assignors: tuple[str, ...] = option(
        "group.share.assignors", SHARE_ASSIGNORS, each_of(*SHARE_ASSIGNORS), "The assignor of share groups."
    )
    assignment_interval_ms: int = option(
        "group.share.assignment.interval.ms",
        1_000,
        at_least(0),
        "The shortest time between two target assignments of a share group. 0: every change is assigned at once.",
    )
    min_assignment_interval_ms: int = option(
        "group.share.min.assignment.interval.ms",
        0,
        at_least(0),
        "The shortest assignment interval that a share group may set for itself.",
    )
    max_assignment_interval_ms: int = option(
        "group.share.max.assignment.interval.ms",
        15_000,
        at_least(0),
        "The longest assignment interval that a share group may set for itself.",
    )
    assignor_offload_enable: bool = option(
        "group.share.assignor.offload.enable",
        True,
        anything,
        "Kafka: whether assignments are computed in another thread. No effect here.",
    )
    initialize_retry_interval_ms: int = option(
        "group.share.initialize.retry.interval.ms",
        30_000,
        at_least(1),
        "How long after a failure the state of share partitions of a deleted topic is deleted again.",
    )
    delivery_count_limit: int = option(
        "group.share.delivery.count.limit",
        5,
        between(2, 10),
        "How often a record is delivered to a share group before it is archived.",
    )
    min_delivery_count_limit: int = option(
        "group.share.min.delivery.count.limit",
        2,
        between(2, 5),
        "The lowest delivery count limit that a share group may set for itself.",
    )
    max_delivery_count_limit: int = option(
        "group.share.max.delivery.count.limit",
        10,
        between(5, 25),
        "The highest delivery count limit that a share group may set for itself.",
    )
    record_lock_duration_ms: int = option(
        "group.share.record.lock.duration.ms",
        30_000,
        between(1_000, 3_600_000),
        "How long a member of a share group may hold a record before it is delivered again.",
    )
    min_record_lock_duration_ms: int = option(
        "group.share.min.record.lock.duration.ms",
        15_000,
        between(1_000, 30_000),
        "The shortest record lock that a share group may set for itself.",
    )
    max_record_lock_duration_ms: int = option(
        "group.share.max.record.lock.duration.ms",
        60_000,
        between(30_000, 3_600_000),
        "The longest record lock that a share group may set for itself.",
    )
    partition_max_record_locks: int = option(
        "group.share.partition.max.record.locks",
        2_000,
        between(100, 10_000),
        "The most records of one partition that a share group has acquired and not finished, or has to acquire again "
        "at once. With so many, no new records are delivered.",
    )
    min_partition_max_record_locks: int = option(
        "group.share.min.partition.max.record.locks",
        100,
        between(100, 2_000),
        "The lowest limit of record locks that a share group may set for itself.",
    )
    max_partition_max_record_locks: int = option(
        "group.share.max.partition.max.record.locks",
        4_000,
        between(2_000, 10_000),
        "The highest limit of record locks that a share group may set for itself.",
    )
    max_share_sessions: int = option(
        "group.share.max.share.sessions", 2_000, at_least(1), "The most share sessions of this broker."
    )
    dead_letter_auto_create: bool = option(
        "errors.deadletterqueue.auto.create.topics.enable",
        False,
        anything,
        "Whether the dead-letter topic of a share group is created when it is first needed (KIP-1191).",
    )
    dead_letter_prefix: str = option(
        "errors.deadletterqueue.topic.name.prefix",
        "dlq.",
        anything,
        "What the name of a dead-letter topic begins with. Empty: any name will do.",
    )
