"""The options of a topic, under Kafka's names; ``broker_name`` is the broker option that sets the default of all.

Left out: options of features that are not built; a topic created with one of them is refused by name.
"""

from collections.abc import Container
from dataclasses import dataclass, replace
from functools import cached_property

from skep.base.config.option import OptionType, all_or_each_like, anything, at_least, between, each_of, one_of, option

HOUR_MS = 3_600_000
NEVER = (1 << 63) - 1

_replicas = all_or_each_like("[0-9]{1,10}:[0-9]{1,10}", "PARTITION:BROKER")


@dataclass(frozen=True)
class TopicConfig:
    cleanup_policy: tuple[str, ...] = option(
        "cleanup.policy",
        ("delete",),
        each_of("delete", "compact"),
        "What happens to old records: delete removes them by age and size, compact keeps the newest of each key.",
        broker_name="log.cleanup.policy",
    )
    compression_type: str = option(
        "compression.type",
        "producer",
        one_of("producer"),
        "The codec that batches are stored with; producer keeps the one they came with.",
        broker_name="compression.type",
    )
    delete_retention_ms: int = option(
        "delete.retention.ms",
        24 * HOUR_MS,
        at_least(0),
        "How long compaction leaves a tombstone, or the marker of a transaction, for readers that have not met it.",
        type=OptionType.LONG,
        broker_name="log.cleaner.delete.retention.ms",
    )
    file_delete_delay_ms: int = option(
        "file.delete.delay.ms",
        60_000,
        at_least(0),
        "How long the files of a deleted segment stay, for readers that are in the middle of them.",
        type=OptionType.LONG,
        broker_name="log.segment.delete.delay.ms",
    )
    flush_messages: int = option(
        "flush.messages",
        NEVER,
        at_least(1),
        "Sync to disk after so many records. 1: before each acknowledgement, many requests sharing one sync.",
        type=OptionType.LONG,
        broker_name="log.flush.interval.messages",
    )
    flush_ms: int = option(
        "flush.ms",
        NEVER,
        at_least(0),
        "Sync to disk at the latest so many milliseconds after an append.",
        type=OptionType.LONG,
        broker_name="log.flush.interval.ms",
    )
    follower_replication_throttled_replicas: tuple[str, ...] = option(
        "follower.replication.throttled.replicas",
        (),
        _replicas,
        "The replicas, PARTITION:BROKER,... or * for all, that catch up no faster than "
        "follower.replication.throttled.rate while they are not in sync; one that a reassignment adds does so unnamed.",
    )
    index_interval_bytes: int = option(
        "index.interval.bytes",
        4096,
        at_least(0),
        "How many bytes of log lie between two entries of the offset index; more than 65536 count as 65536.",
        broker_name="log.index.interval.bytes",
    )
    leader_replication_throttled_replicas: tuple[str, ...] = option(
        "leader.replication.throttled.replicas",
        (),
        _replicas,
        "The leaders, PARTITION:BROKER,... or * for all, that give replicas which are not in sync no more than "
        "leader.replication.throttled.rate; to one that a reassignment adds all do so unnamed.",
    )
    max_compaction_lag_ms: int = option(
        "max.compaction.lag.ms",
        NEVER,
        at_least(1),
        "How long a record may stay uncompacted, whatever the ratio of uncompacted bytes is.",
        type=OptionType.LONG,
        broker_name="log.cleaner.max.compaction.lag.ms",
    )
    max_message_bytes: int = option(
        "max.message.bytes",
        1_048_588,
        at_least(0),
        "The largest record batch that is accepted, as it is on the wire.",
        broker_name="message.max.bytes",
    )
    message_timestamp_after_max_ms: int = option(
        "message.timestamp.after.max.ms",
        HOUR_MS,
        at_least(0),
        "How far a record's timestamp may lie after the broker's clock.",
        type=OptionType.LONG,
        broker_name="log.message.timestamp.after.max.ms",
    )
    message_timestamp_before_max_ms: int = option(
        "message.timestamp.before.max.ms",
        NEVER,
        at_least(0),
        "How far a record's timestamp may lie before the broker's clock.",
        type=OptionType.LONG,
        broker_name="log.message.timestamp.before.max.ms",
    )
    message_timestamp_type: str = option(
        "message.timestamp.type",
        "CreateTime",
        one_of("CreateTime", "LogAppendTime"),
        "Whether a record keeps its producer's time or gets the time of its append.",
        broker_name="log.message.timestamp.type",
    )
    min_cleanable_dirty_ratio: float = option(
        "min.cleanable.dirty.ratio",
        0.5,
        between(0, 1),
        "The part of a log that must be uncompacted before it is compacted again.",
        broker_name="log.cleaner.min.cleanable.ratio",
    )
    min_compaction_lag_ms: int = option(
        "min.compaction.lag.ms",
        0,
        at_least(0),
        "How long a record stays uncompacted at the least.",
        type=OptionType.LONG,
        broker_name="log.cleaner.min.compaction.lag.ms",
    )
    min_insync_replicas: int = option(
        "min.insync.replicas",
        1,
        at_least(1),
        "How many replicas must be in sync for a produce with acks=all; no more than the partition has.",
        broker_name="min.insync.replicas",
    )
    retention_bytes: int = option(
        "retention.bytes",
        -1,
        at_least(-1),
        "How large a partition may grow before its oldest segments are deleted; -1: no limit.",
        type=OptionType.LONG,
        broker_name="log.retention.bytes",
    )
    retention_ms: int = option(
        "retention.ms",
        168 * HOUR_MS,
        at_least(-1),
        "How long records are kept; -1: for ever.",
        type=OptionType.LONG,
        broker_name="log.retention.ms",
    )
    segment_bytes: int = option(
        "segment.bytes",
        1 << 30,
        between(14, (1 << 31) - 1),
        "The size at which a new segment is begun.",
        broker_name="log.segment.bytes",
    )
    segment_index_bytes: int = option(
        "segment.index.bytes",
        10_485_760,
        at_least(12),
        "The size of an index at which a new segment is begun.",
        broker_name="log.index.size.max.bytes",
    )
    segment_jitter_ms: int = option(
        "segment.jitter.ms",
        0,
        at_least(0),
        "A random part taken off segment.ms, so that not all partitions begin a segment at once.",
        type=OptionType.LONG,
        broker_name="log.roll.jitter.ms",
    )
    segment_ms: int = option(
        "segment.ms",
        168 * HOUR_MS,
        at_least(1),
        "The age at which a new segment is begun.",
        type=OptionType.LONG,
        broker_name="log.roll.ms",
    )
    unclean_leader_election_enable: bool = option(
        "unclean.leader.election.enable",
        False,
        anything,
        "Whether a replica that lacks acknowledged records may lead when none that has them is left.",
        broker_name="unclean.leader.election.enable",
    )

    @cached_property
    def is_compacted(self) -> bool:
        return "compact" in self.cleanup_policy

    @cached_property
    def expires(self) -> bool:
        """Whether records go by age and size."""
        return "delete" in self.cleanup_policy

    @cached_property
    def roll_ms(self) -> int:
        """The age at which a new segment is begun: only what is in a sealed one can be compacted in time."""
        return min(self.segment_ms, self.max_compaction_lag_ms) if self.is_compacted else self.segment_ms

    @cached_property
    def throttled_followers(self) -> Container[tuple[int, int]]:
        """Partition and broker of the replicas that are to catch up slowly."""
        return _replicas_in(self.follower_replication_throttled_replicas)

    @cached_property
    def throttled_leaders(self) -> Container[tuple[int, int]]:
        """Partition and broker of the leaders that are to let others catch up slowly."""
        return _replicas_in(self.leader_replication_throttled_replicas)

    @cached_property
    def syncs_before_acknowledging(self) -> bool:
        return self.flush_messages == 1

    @cached_property
    def with_syncs(self) -> "TopicConfig":
        """The same, except that it syncs before it acknowledges; one object, however often it is asked for."""
        return replace(self, flush_messages=1)


class _All:
    def __contains__(self, replica: object) -> bool:
        return True


def _replicas_in(listed: tuple[str, ...]) -> Container[tuple[int, int]]:
    if listed == ("*",):
        return _All()
    pairs = (replica.split(":") for replica in listed)
    return frozenset((int(partition), int(broker)) for partition, broker in pairs)
