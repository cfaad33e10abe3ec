"""The section ``coordinator`` of the broker options: groups, offsets, transactions and the state of share groups."""

from dataclasses import dataclass

from skep.base.config.option import OptionType, anything, at_least, between, each_of, one_of, option

ASSIGNORS = ("uniform", "range")
"""The assignors of consumer groups (KIP-848). The first is the default."""

CONSUMER_OFFSETS = "__consumer_offsets"
TRANSACTION_STATE = "__transaction_state"
SHARE_GROUP_STATE = "__share_group_state"


@dataclass(frozen=True)
class CoordinatorConfig:
    group_min_session_timeout_ms: int = option(
        "group.min.session.timeout.ms",
        6_000,
        at_least(1),
        "The shortest session timeout that a member of a classic group may request.",
    )
    group_max_session_timeout_ms: int = option(
        "group.max.session.timeout.ms",
        1_800_000,
        at_least(1),
        "The longest session timeout that a member of a classic group may request.",
    )
    group_initial_rebalance_delay_ms: int = option(
        "group.initial.rebalance.delay.ms",
        300,
        at_least(0),
        "How long a new or empty classic group waits for more members before its first assignment. Each member that "
        "comes meanwhile extends it once. Kafka waits 3000.",
    )
    group_max_size: int = option(
        "group.max.size",
        20_000,
        at_least(1),
        "The most members of one classic group, including those that are joining.",
    )
    max_groups: int = option(
        "skep.max.groups",
        100_000,
        at_least(1),
        "The most groups in one partition of __consumer_offsets. Further ones are refused.",
    )
    max_group_id_bytes: int = option(
        "skep.max.group.id.bytes",
        1_024,
        # A string in a record has at most 32,767 bytes, and member ids are longer by a UUID.
        between(1, 30_000),
        "The longest group id, and the longest transactional id.",
    )
    max_group_metadata_bytes: int = option(
        "skep.max.group.metadata.bytes",
        4 << 20,
        at_least(1),
        "The most bytes of metadata of all members of one group together. Further members are refused.",
    )
    max_group_offsets: int = option(
        "skep.max.group.offsets",
        100_000,
        at_least(1),
        "The most partitions with committed offsets in one group. Commits for further ones are refused.",
    )
    max_groups_memory_bytes: int = option(
        "skep.max.groups.memory.bytes",
        512 << 20,
        at_least(1),
        "The estimated memory of all groups and offsets of this broker. Above it, new groups, members and offsets are "
        "refused. What is in the log is loaded in any case.",
        type=OptionType.LONG,
    )
    group_consumer_session_timeout_ms: int = option(
        "group.consumer.session.timeout.ms",
        45_000,
        at_least(1),
        "The session timeout of members of a consumer group (KIP-848).",
    )
    group_consumer_min_session_timeout_ms: int = option(
        "group.consumer.min.session.timeout.ms",
        45_000,
        at_least(1),
        "The shortest session timeout that a consumer group may set for itself.",
    )
    group_consumer_max_session_timeout_ms: int = option(
        "group.consumer.max.session.timeout.ms",
        60_000,
        at_least(1),
        "The longest session timeout that a consumer group may set for itself.",
    )
    group_consumer_heartbeat_interval_ms: int = option(
        "group.consumer.heartbeat.interval.ms",
        5_000,
        at_least(1),
        "The heartbeat interval of members of a consumer group (KIP-848).",
    )
    group_consumer_min_heartbeat_interval_ms: int = option(
        "group.consumer.min.heartbeat.interval.ms",
        5_000,
        at_least(1),
        "The shortest heartbeat interval that a consumer group may set for itself.",
    )
    group_consumer_max_heartbeat_interval_ms: int = option(
        "group.consumer.max.heartbeat.interval.ms",
        15_000,
        at_least(1),
        "The longest heartbeat interval that a consumer group may set for itself.",
    )
    group_consumer_max_size: int = option(
        "group.consumer.max.size", 20_000, at_least(1), "The most members of one consumer group (KIP-848)."
    )
    group_consumer_assignors: tuple[str, ...] = option(
        "group.consumer.assignors",
        ASSIGNORS,
        each_of(*ASSIGNORS),
        "The assignors that consumer groups may use. The first is the default.",
    )
    group_consumer_migration_policy: str = option(
        "group.consumer.migration.policy",
        "bidirectional",
        one_of("disabled", "upgrade", "downgrade", "bidirectional"),
        "In which direction a group with members may change between the classic and the consumer protocol.",
    )
    offset_metadata_max_bytes: int = option(
        "offset.metadata.max.bytes",
        4_096,
        at_least(0),
        "The longest metadata string that may be committed with an offset.",
    )
    offsets_retention_minutes: int = option(
        "offsets.retention.minutes",
        10_080,
        at_least(1),
        "How long the offsets of a group without members are kept.",
    )
    offsets_retention_check_interval_ms: int = option(
        "offsets.retention.check.interval.ms",
        600_000,
        at_least(1),
        "How often offsets are checked for expiry.",
        type=OptionType.LONG,
    )
    offsets_topic_num_partitions: int = option(
        "offsets.topic.num.partitions",
        50,
        at_least(1),
        "The partitions of __consumer_offsets when it is created. Cannot be changed later.",
        dynamic=False,
    )
    offsets_topic_replication_factor: int = option(
        "offsets.topic.replication.factor",
        3,
        at_least(1),
        "The replicas of __consumer_offsets when it is created, limited by the number of brokers.",
        dynamic=False,
    )
    offsets_topic_segment_bytes: int = option(
        "offsets.topic.segment.bytes",
        104_857_600,
        at_least(1),
        "The segment.bytes of __consumer_offsets when it is created.",
        dynamic=False,
    )
    transaction_max_timeout_ms: int = option(
        "transaction.max.timeout.ms", 900_000, at_least(1), "The longest transaction.timeout.ms of a producer."
    )
    transactional_id_expiration_ms: int = option(
        "transactional.id.expiration.ms",
        604_800_000,
        at_least(1),
        "How long a transactional id is kept after its last transaction.",
    )
    max_transactional_ids: int = option(
        "skep.max.transactional.ids",
        100_000,
        at_least(1),
        "The most transactional ids in one partition of __transaction_state. Further ones are refused.",
    )
    transaction_abort_interval_ms: int = option(
        "transaction.abort.timed.out.transaction.cleanup.interval.ms",
        10_000,
        at_least(1),
        "How often transactions are checked for their timeout.",
    )
    transaction_remove_interval_ms: int = option(
        "transaction.remove.expired.transaction.cleanup.interval.ms",
        3_600_000,
        at_least(1),
        "How often transactional ids are checked for expiry.",
    )
    transaction_partition_verification_enable: bool = option(
        "transaction.partition.verification.enable",
        True,
        anything,
        "Whether a partition leader verifies that the partition belongs to the transaction before it appends the "
        "transaction's first batch.",
    )
    transaction_topic_num_partitions: int = option(
        "transaction.state.log.num.partitions",
        50,
        at_least(1),
        "The partitions of __transaction_state when it is created. Cannot be changed later.",
        dynamic=False,
    )
    transaction_topic_replication_factor: int = option(
        "transaction.state.log.replication.factor",
        3,
        at_least(1),
        "The replicas of __transaction_state when it is created, limited by the number of brokers.",
        dynamic=False,
    )
    transaction_topic_segment_bytes: int = option(
        "transaction.state.log.segment.bytes",
        104_857_600,
        at_least(1),
        "The segment.bytes of __transaction_state when it is created.",
        dynamic=False,
    )
    share_topic_num_partitions: int = option(
        "share.coordinator.state.topic.num.partitions",
        50,
        at_least(1),
        "The partitions of __share_group_state when it is created. Cannot be changed later.",
        dynamic=False,
    )
    share_topic_replication_factor: int = option(
        "share.coordinator.state.topic.replication.factor",
        3,
        at_least(1),
        "The replicas of __share_group_state when it is created, limited by the number of brokers.",
        dynamic=False,
    )
    share_topic_segment_bytes: int = option(
        "share.coordinator.state.topic.segment.bytes",
        104_857_600,
        at_least(1),
        "The segment.bytes of __share_group_state when it is created.",
        dynamic=False,
    )
    share_topic_min_isr: int = option(
        "share.coordinator.state.topic.min.isr",
        2,
        at_least(1),
        "The min.insync.replicas of __share_group_state when it is created. With fewer replicas, all of them.",
        dynamic=False,
    )
    share_write_timeout_ms: int = option(
        "share.coordinator.write.timeout.ms",
        5_000,
        at_least(1),
        "How long the share coordinator waits until all in-sync replicas have the state of a share partition.",
    )
    share_snapshot_update_records_per_snapshot: int = option(
        "share.coordinator.snapshot.update.records.per.snapshot",
        500,
        between(0, 500),
        "The updates of a share partition's state in __share_group_state between two snapshots.",
    )
    share_cold_snapshot_interval_ms: int = option(
        "share.coordinator.cold.partition.snapshot.interval.ms",
        300_000,
        at_least(1),
        "How often snapshots are written for share partitions that have no recent one, so that older records of "
        "__share_group_state can be deleted.",
    )
    share_prune_interval_ms: int = option(
        "share.coordinator.state.topic.prune.interval.ms",
        300_000,
        at_least(1),
        "How often the records of __share_group_state that are no longer needed are deleted.",
    )
    max_share_partitions: int = option(
        "skep.max.share.partitions",
        100_000,
        at_least(1),
        "The most share partitions (a partition in a share group) in one partition of __share_group_state. Further "
        "ones are refused.",
    )

    @property
    def internal_replication_factors(self) -> dict[str, int]:
        """The replication factors of the coordinators' topics."""
        return {
            CONSUMER_OFFSETS: self.offsets_topic_replication_factor,
            TRANSACTION_STATE: self.transaction_topic_replication_factor,
            SHARE_GROUP_STATE: self.share_topic_replication_factor,
        }
