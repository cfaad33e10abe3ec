"""The options of a topic, under Kafka's names. ``broker_name`` is the broker option that sets the default.

Left out: options of features that do not exist here. A topic that is created with one of them is refused.
"""

from collections.abc import Container
from dataclasses import dataclass, replace
from functools import cached_property

from skep.base.config.option import (
    OptionType,
    all_or_each_like,
    anything,
    at_least,
    between,
    one_of,
    option,
    some_of,
    topic_name_or_empty,
)

HOUR_MS = 3_600_000
NEVER = (1 << 63) - 1
KEEPS_CODEC = "producer"
KEEP, ROLLBACK = "keep", "rollback"

_replicas = all_or_each_like("[0-9]{1,10}:[0-9]{1,10}", "PARTITION:BROKER")


@dataclass(frozen=True)
class TopicConfig:
    cleanup_policy: tuple[str, ...] = option(
        "cleanup.policy",
        ("delete",),
        some_of("delete", "compact"),
        "What happens to old records: delete removes them by age and size, compact keeps the newest of each key. "
        "Empty: all are kept.",
        broker_name="log.cleanup.policy",
    )
    compression_type: str = option(
        "compression.type",
        KEEPS_CODEC,
        one_of(KEEPS_CODEC, "uncompressed", "gzip", "snappy", "lz4", "zstd"),
        "The codec of stored batches. producer keeps the producer's codec. With any other, the broker compresses "
        "batches of another codec again, which costs time and memory; those that decompress to more than 32 MiB are "
        "refused.",
        broker_name="compression.type",
    )
    delete_retention_ms: int = option(
        "delete.retention.ms",
        24 * HOUR_MS,
        at_least(0),
        "How long compaction keeps tombstones and transaction markers, for consumers that have not read them yet.",
        type=OptionType.LONG,
        broker_name="log.cleaner.delete.retention.ms",
    )
    dead_letter_group_enable: bool = option(
        "errors.deadletterqueue.group.enable",
        False,
        anything,
        "Whether share groups may use the topic as their dead-letter topic (KIP-1191).",
    )
    file_delete_delay_ms: int = option(
        "file.delete.delay.ms",
        60_000,
        at_least(0),
        "How long the files of a deleted segment stay, for consumers that are reading them.",
        type=OptionType.LONG,
        broker_name="log.segment.delete.delay.ms",
    )
    flush_messages: int = option(
        "flush.messages",
        NEVER,
        at_least(1),
        "Sync to disk after this many records. 1: before each acknowledgement; concurrent requests share a sync.",
        type=OptionType.LONG,
        broker_name="log.flush.interval.messages",
    )
    flush_ms: int = option(
        "flush.ms",
        NEVER,
        at_least(0),
        "Sync to disk at most this many milliseconds after an append.",
        type=OptionType.LONG,
        broker_name="log.flush.interval.ms",
    )
    delete_when_acknowledged: bool = option(
        "skep.delete.when.acknowledged",
        False,
        anything,
        "Whether records are deleted when every group that reads the topic has acknowledged them, or committed a later "
        "offset. While no group reads it, and for at most retention.ms, they are kept. Not for topics that are only "
        "compacted.",
    )
    follower_replication_throttled_replicas: tuple[str, ...] = option(
        "follower.replication.throttled.replicas",
        (),
        _replicas,
        "Replicas, as PARTITION:BROKER,... or * for all, that fetch no faster than follower.replication.throttled.rate "
        "while they are not in sync. Replicas that a reassignment adds are throttled in any case.",
    )
    index_interval_bytes: int = option(
        "index.interval.bytes",
        4096,
        at_least(0),
        "The bytes of log between two entries of the offset index. More than 65536 counts as 65536.",
        broker_name="log.index.interval.bytes",
    )
    leader_replication_throttled_replicas: tuple[str, ...] = option(
        "leader.replication.throttled.replicas",
        (),
        _replicas,
        "Leaders, as PARTITION:BROKER,... or * for all, that send no more than leader.replication.throttled.rate to "
        "replicas that are not in sync. Replicas that a reassignment adds are throttled in any case.",
    )
    max_compaction_lag_ms: int = option(
        "max.compaction.lag.ms",
        NEVER,
        at_least(1),
        "The longest time that a record may stay uncompacted, whatever the dirty ratio is.",
        type=OptionType.LONG,
        broker_name="log.cleaner.max.compaction.lag.ms",
    )
    max_message_bytes: int = option(
        "max.message.bytes",
        1_048_588,
        at_least(0),
        "The largest record batch that is accepted, in bytes as sent (compressed).",
        broker_name="message.max.bytes",
    )
    message_timestamp_after_max_ms: int = option(
        "message.timestamp.after.max.ms",
        HOUR_MS,
        at_least(0),
        "How far a record's timestamp may be ahead of the broker's clock.",
        type=OptionType.LONG,
        broker_name="log.message.timestamp.after.max.ms",
    )
    message_timestamp_before_max_ms: int = option(
        "message.timestamp.before.max.ms",
        NEVER,
        at_least(0),
        "How far a record's timestamp may be behind the broker's clock.",
        type=OptionType.LONG,
        broker_name="log.message.timestamp.before.max.ms",
    )
    message_timestamp_type: str = option(
        "message.timestamp.type",
        "CreateTime",
        one_of("CreateTime", "LogAppendTime"),
        "Whether a record keeps its producer's timestamp or gets the time of its append.",
        broker_name="log.message.timestamp.type",
    )
    min_cleanable_dirty_ratio: float = option(
        "min.cleanable.dirty.ratio",
        0.5,
        between(0, 1),
        "The share of a log that must be uncompacted before it is compacted again.",
        broker_name="log.cleaner.min.cleanable.ratio",
    )
    min_compaction_lag_ms: int = option(
        "min.compaction.lag.ms",
        0,
        at_least(0),
        "The shortest time that a record stays uncompacted.",
        type=OptionType.LONG,
        broker_name="log.cleaner.min.compaction.lag.ms",
    )
    min_insync_replicas: int = option(
        "min.insync.replicas",
        1,
        at_least(1),
        "How many replicas must be in sync for a produce with acks=all, limited by the number of replicas.",
        broker_name="min.insync.replicas",
    )
    retention_bytes: int = option(
        "retention.bytes",
        -1,
        at_least(-1),
        "The size of a partition above which its oldest segments are deleted. -1: no limit.",
        type=OptionType.LONG,
        broker_name="log.retention.bytes",
    )
    retention_ms: int = option(
        "retention.ms",
        168 * HOUR_MS,
        at_least(-1),
        "How long records are kept. -1: forever.",
        type=OptionType.LONG,
        broker_name="log.retention.ms",
    )
    segment_bytes: int = option(
        "segment.bytes",
        1 << 30,
        between(14, (1 << 31) - 1),
        "The size at which a new segment is started.",
        broker_name="log.segment.bytes",
    )
    segment_index_bytes: int = option(
        "segment.index.bytes",
        10_485_760,
        at_least(12),
        "The size of an index at which a new segment is started.",
        broker_name="log.index.size.max.bytes",
    )
    segment_jitter_ms: int = option(
        "segment.jitter.ms",
        0,
        at_least(0),
        "The largest random time subtracted from segment.ms, so that not all partitions start a segment at once.",
        type=OptionType.LONG,
        broker_name="log.roll.jitter.ms",
    )
    segment_ms: int = option(
        "segment.ms",
        168 * HOUR_MS,
        at_least(1),
        "The age at which a new segment is started.",
        type=OptionType.LONG,
        broker_name="log.roll.ms",
    )
    held_max_delay_ms: int = option(
        "skep.held.max.delay.ms",
        365 * 24 * HOUR_MS,
        between(0, 3660 * 24 * HOUR_MS),
        "The longest time that a record of a held topic may wait. A record that asks for more stays, as invalid.",
        type=OptionType.LONG,
    )
    held_max_firings_per_second: int = option(
        "skep.held.max.firings.per.second",
        1000,
        between(0, 1_000_000),
        "How often the schedules of a partition of a held topic may fire, all together. One that would be too much "
        "stays as invalid at its first firing. Those that have fired before go on.",
    )
    held_target: str = option(
        "skep.held.target",
        "",
        topic_name_or_empty,
        "Makes the topic a held topic: its records wait until they are due, and are then written to this topic. It "
        "needs cleanup.policy=compact, which a new topic gets by itself. Empty: an ordinary topic.",
    )
    held_tick_ms: int = option(
        "skep.held.tick.ms",
        100,
        between(1, 60_000),
        "The shortest time between two releases of a partition of a held topic, except when very many records are due.",
    )
    held_undecided: str = option(
        "skep.held.undecided",
        KEEP,
        one_of(KEEP, ROLLBACK),
        "What happens to a half message when all questions about it had no answer: keep lets it wait, rollback removes "
        "it.",
    )
    unclean_leader_election_enable: bool = option(
        "unclean.leader.election.enable",
        False,
        anything,
        "Whether a replica that lacks acknowledged records may become leader if no replica in sync is left.",
        broker_name="unclean.leader.election.enable",
    )

    @cached_property
    def is_compacted(self) -> bool:
        return "compact" in self.cleanup_policy

    @cached_property
    def examines_batches(self) -> bool:
        """Whether the broker looks into produced batches: for their keys, or to compress them again."""
        return self.is_compacted or self.compression_type != KEEPS_CODEC

    @cached_property
    def expires(self) -> bool:
        """Whether records are deleted by age and size."""
        return "delete" in self.cleanup_policy

    @cached_property
    def roll_ms(self) -> int:
        """The age at which a new segment is started. Only sealed segments can be compacted in time."""
        return min(self.segment_ms, self.max_compaction_lag_ms) if self.is_compacted else self.segment_ms

    @cached_property
    def throttled_followers(self) -> Container[tuple[int, int]]:
        """Partition and broker of the replicas that are throttled as followers."""
        return _replicas_in(self.follower_replication_throttled_replicas)

    @cached_property
    def throttled_leaders(self) -> Container[tuple[int, int]]:
        """Partition and broker of the leaders that throttle their followers."""
        return _replicas_in(self.leader_replication_throttled_replicas)

    @cached_property
    def syncs_before_acknowledging(self) -> bool:
        return self.flush_messages == 1

    @cached_property
    def with_syncs(self) -> "TopicConfig":
        """This config with a sync before each acknowledgement. It is always the same object."""
        return replace(self, flush_messages=1)


class _All:
    def __contains__(self, replica: object) -> bool:
        return True


def _replicas_in(listed: tuple[str, ...]) -> Container[tuple[int, int]]:
    if listed == ("*",):
        return _All()
    pairs = (replica.split(":") for replica in listed)
    return frozenset((int(partition), int(broker)) for partition, broker in pairs)
