"""The table of served APIs and versions, which ApiVersions, dispatch and the docs use."""

from typing import NamedTuple


class Api(NamedTuple):
    """One API. ``flexible_from`` is the first version with compact lengths and tagged fields."""

    key: int
    name: str
    oldest: int
    newest: int
    flexible_from: int

    def serves(self, version: int) -> bool:
        return self.oldest <= version <= self.newest

    def is_flexible(self, version: int) -> bool:
        return version >= self.flexible_from


PRODUCE = Api(0, "Produce", 3, 12, 9)
FETCH = Api(1, "Fetch", 4, 18, 12)
LIST_OFFSETS = Api(2, "ListOffsets", 1, 11, 6)
METADATA = Api(3, "Metadata", 0, 13, 9)
OFFSET_COMMIT = Api(8, "OffsetCommit", 2, 10, 8)
OFFSET_FETCH = Api(9, "OffsetFetch", 1, 10, 6)
FIND_COORDINATOR = Api(10, "FindCoordinator", 0, 6, 3)
JOIN_GROUP = Api(11, "JoinGroup", 0, 9, 6)
HEARTBEAT = Api(12, "Heartbeat", 0, 4, 4)
LEAVE_GROUP = Api(13, "LeaveGroup", 0, 5, 4)
SYNC_GROUP = Api(14, "SyncGroup", 0, 5, 4)
DESCRIBE_GROUPS = Api(15, "DescribeGroups", 0, 6, 5)
LIST_GROUPS = Api(16, "ListGroups", 0, 5, 3)
SASL_HANDSHAKE = Api(17, "SaslHandshake", 1, 1, 2)
API_VERSIONS = Api(18, "ApiVersions", 0, 4, 3)
CREATE_TOPICS = Api(19, "CreateTopics", 2, 7, 5)
DELETE_TOPICS = Api(20, "DeleteTopics", 1, 6, 4)
DELETE_RECORDS = Api(21, "DeleteRecords", 0, 2, 2)
INIT_PRODUCER_ID = Api(22, "InitProducerId", 0, 5, 2)
OFFSET_FOR_LEADER_EPOCH = Api(23, "OffsetForLeaderEpoch", 2, 4, 4)
ADD_PARTITIONS_TO_TXN = Api(24, "AddPartitionsToTxn", 0, 4, 3)
ADD_OFFSETS_TO_TXN = Api(25, "AddOffsetsToTxn", 0, 4, 3)
END_TXN = Api(26, "EndTxn", 0, 5, 3)
WRITE_TXN_MARKERS = Api(27, "WriteTxnMarkers", 1, 2, 1)
TXN_OFFSET_COMMIT = Api(28, "TxnOffsetCommit", 0, 5, 3)
DESCRIBE_ACLS = Api(29, "DescribeAcls", 1, 3, 2)
CREATE_ACLS = Api(30, "CreateAcls", 1, 3, 2)
DELETE_ACLS = Api(31, "DeleteAcls", 1, 3, 2)
DESCRIBE_CONFIGS = Api(32, "DescribeConfigs", 1, 4, 4)
ALTER_CONFIGS = Api(33, "AlterConfigs", 0, 2, 2)
ALTER_REPLICA_LOG_DIRS = Api(34, "AlterReplicaLogDirs", 1, 2, 2)
DESCRIBE_LOG_DIRS = Api(35, "DescribeLogDirs", 1, 5, 2)
SASL_AUTHENTICATE = Api(36, "SaslAuthenticate", 0, 2, 2)
CREATE_PARTITIONS = Api(37, "CreatePartitions", 0, 3, 2)
DELETE_GROUPS = Api(42, "DeleteGroups", 0, 2, 2)
ELECT_LEADERS = Api(43, "ElectLeaders", 0, 2, 2)
INCREMENTAL_ALTER_CONFIGS = Api(44, "IncrementalAlterConfigs", 0, 1, 1)
ALTER_PARTITION_REASSIGNMENTS = Api(45, "AlterPartitionReassignments", 0, 1, 0)
LIST_PARTITION_REASSIGNMENTS = Api(46, "ListPartitionReassignments", 0, 0, 0)
OFFSET_DELETE = Api(47, "OffsetDelete", 0, 0, 1)
DESCRIBE_CLIENT_QUOTAS = Api(48, "DescribeClientQuotas", 0, 1, 1)
ALTER_CLIENT_QUOTAS = Api(49, "AlterClientQuotas", 0, 1, 1)
DESCRIBE_USER_SCRAM_CREDENTIALS = Api(50, "DescribeUserScramCredentials", 0, 0, 0)
ALTER_USER_SCRAM_CREDENTIALS = Api(51, "AlterUserScramCredentials", 0, 0, 0)
DESCRIBE_QUORUM = Api(55, "DescribeQuorum", 0, 2, 0)
DESCRIBE_CLUSTER = Api(60, "DescribeCluster", 0, 2, 0)
DESCRIBE_PRODUCERS = Api(61, "DescribeProducers", 0, 0, 0)
UNREGISTER_BROKER = Api(64, "UnregisterBroker", 0, 0, 0)
DESCRIBE_TRANSACTIONS = Api(65, "DescribeTransactions", 0, 0, 0)
LIST_TRANSACTIONS = Api(66, "ListTransactions", 0, 1, 0)
CONSUMER_GROUP_HEARTBEAT = Api(68, "ConsumerGroupHeartbeat", 0, 1, 0)
CONSUMER_GROUP_DESCRIBE = Api(69, "ConsumerGroupDescribe", 0, 1, 0)
LIST_CONFIG_RESOURCES = Api(74, "ListConfigResources", 0, 1, 0)
DESCRIBE_TOPIC_PARTITIONS = Api(75, "DescribeTopicPartitions", 0, 0, 0)
SHARE_GROUP_HEARTBEAT = Api(76, "ShareGroupHeartbeat", 1, 1, 0)
SHARE_GROUP_DESCRIBE = Api(77, "ShareGroupDescribe", 1, 1, 0)
SHARE_FETCH = Api(78, "ShareFetch", 1, 2, 0)
SHARE_ACKNOWLEDGE = Api(79, "ShareAcknowledge", 1, 2, 0)
INITIALIZE_SHARE_GROUP_STATE = Api(83, "InitializeShareGroupState", 0, 0, 0)
READ_SHARE_GROUP_STATE = Api(84, "ReadShareGroupState", 0, 0, 0)
WRITE_SHARE_GROUP_STATE = Api(85, "WriteShareGroupState", 0, 1, 0)
DELETE_SHARE_GROUP_STATE = Api(86, "DeleteShareGroupState", 0, 0, 0)
READ_SHARE_GROUP_STATE_SUMMARY = Api(87, "ReadShareGroupStateSummary", 0, 1, 0)
DESCRIBE_SHARE_GROUP_OFFSETS = Api(90, "DescribeShareGroupOffsets", 0, 1, 0)
ALTER_SHARE_GROUP_OFFSETS = Api(91, "AlterShareGroupOffsets", 0, 0, 0)
DELETE_SHARE_GROUP_OFFSETS = Api(92, "DeleteShareGroupOffsets", 0, 0, 0)
SKEP_COMMAND = Api(20_000, "SkepCommand", 0, 0, 0)
"""Skep's own: Kafka numbers its APIs from 0 on and will not come here (docs/decisions/0022-private-api.md)."""

SERVED: dict[int, Api] = {
    api.key: api
    for api in (
        PRODUCE,
        FETCH,
        LIST_OFFSETS,
        METADATA,
        OFFSET_COMMIT,
        OFFSET_FETCH,
        FIND_COORDINATOR,
        JOIN_GROUP,
        HEARTBEAT,
        LEAVE_GROUP,
        SYNC_GROUP,
        DESCRIBE_GROUPS,
        LIST_GROUPS,
        SASL_HANDSHAKE,
        API_VERSIONS,
        CREATE_TOPICS,
        DELETE_TOPICS,
        DELETE_RECORDS,
        INIT_PRODUCER_ID,
        OFFSET_FOR_LEADER_EPOCH,
        ADD_PARTITIONS_TO_TXN,
        ADD_OFFSETS_TO_TXN,
        END_TXN,
        WRITE_TXN_MARKERS,
        TXN_OFFSET_COMMIT,
        DESCRIBE_ACLS,
        CREATE_ACLS,
        DELETE_ACLS,
        DESCRIBE_CONFIGS,
        ALTER_CONFIGS,
        ALTER_REPLICA_LOG_DIRS,
        DESCRIBE_LOG_DIRS,
        SASL_AUTHENTICATE,
        CREATE_PARTITIONS,
        DELETE_GROUPS,
        ELECT_LEADERS,
        INCREMENTAL_ALTER_CONFIGS,
        ALTER_PARTITION_REASSIGNMENTS,
        LIST_PARTITION_REASSIGNMENTS,
        OFFSET_DELETE,
        DESCRIBE_CLIENT_QUOTAS,
        ALTER_CLIENT_QUOTAS,
        DESCRIBE_USER_SCRAM_CREDENTIALS,
        ALTER_USER_SCRAM_CREDENTIALS,
        DESCRIBE_QUORUM,
        DESCRIBE_CLUSTER,
        DESCRIBE_PRODUCERS,
        UNREGISTER_BROKER,
        DESCRIBE_TRANSACTIONS,
        LIST_TRANSACTIONS,
        CONSUMER_GROUP_HEARTBEAT,
        CONSUMER_GROUP_DESCRIBE,
        LIST_CONFIG_RESOURCES,
        DESCRIBE_TOPIC_PARTITIONS,
        SHARE_GROUP_HEARTBEAT,
        SHARE_GROUP_DESCRIBE,
        SHARE_FETCH,
        SHARE_ACKNOWLEDGE,
        INITIALIZE_SHARE_GROUP_STATE,
        READ_SHARE_GROUP_STATE,
        WRITE_SHARE_GROUP_STATE,
        DELETE_SHARE_GROUP_STATE,
        READ_SHARE_GROUP_STATE_SUMMARY,
        DESCRIBE_SHARE_GROUP_OFFSETS,
        ALTER_SHARE_GROUP_OFFSETS,
        DELETE_SHARE_GROUP_OFFSETS,
        SKEP_COMMAND,
    )
}

NOT_ADVERTISED = frozenset(
    api.key
    for api in (
        INITIALIZE_SHARE_GROUP_STATE,
        READ_SHARE_GROUP_STATE,
        WRITE_SHARE_GROUP_STATE,
        DELETE_SHARE_GROUP_STATE,
        READ_SHARE_GROUP_STATE_SUMMARY,
        SKEP_COMMAND,
    )
)
"""For brokers, and for Skep's own client, which use them without asking for versions."""

BEFORE_TRANSACTIONS_V2 = {
    PRODUCE: PRODUCE._replace(newest=11),
    END_TXN: END_TXN._replace(newest=4),
    TXN_OFFSET_COMMIT: TXN_OFFSET_COMMIT._replace(newest=4),
}
"""For clients whose transactions are not those of KIP-890, part 2: later versions of these APIs belong to them."""

ADVERTISED_OLDEST = {PRODUCE.key: 0, SASL_HANDSHAKE.key: 0}
"""librdkafka disables compression unless Produce is advertised from 0 (KAFKA-18659). 0 to 2 are refused. It takes a
broker for one without SASL unless SaslHandshake is advertised from 0, and then sends version 1. 0 is refused."""

ADVERTISED_NEWEST = {ADD_PARTITIONS_TO_TXN.key: 3}
"""Version 4 is only for brokers, which use it without asking for versions. Clients must not choose it."""
