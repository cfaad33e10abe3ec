"""The APIs that are served, with their versions: the one table that ApiVersions, dispatch and the docs read."""

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


PRODUCE = Api(0, "Produce", 3, 11, 9)
FETCH = Api(1, "Fetch", 4, 18, 12)
LIST_OFFSETS = Api(2, "ListOffsets", 1, 11, 6)
METADATA = Api(3, "Metadata", 0, 13, 9)
FIND_COORDINATOR = Api(10, "FindCoordinator", 0, 6, 3)
API_VERSIONS = Api(18, "ApiVersions", 0, 4, 3)
CREATE_TOPICS = Api(19, "CreateTopics", 2, 7, 5)
DELETE_TOPICS = Api(20, "DeleteTopics", 1, 6, 4)
DELETE_RECORDS = Api(21, "DeleteRecords", 0, 2, 2)
INIT_PRODUCER_ID = Api(22, "InitProducerId", 0, 5, 2)
OFFSET_FOR_LEADER_EPOCH = Api(23, "OffsetForLeaderEpoch", 2, 4, 4)
DESCRIBE_CONFIGS = Api(32, "DescribeConfigs", 1, 4, 4)
ALTER_CONFIGS = Api(33, "AlterConfigs", 0, 2, 2)
DESCRIBE_LOG_DIRS = Api(35, "DescribeLogDirs", 1, 5, 2)
CREATE_PARTITIONS = Api(37, "CreatePartitions", 0, 3, 2)
INCREMENTAL_ALTER_CONFIGS = Api(44, "IncrementalAlterConfigs", 0, 1, 1)
DESCRIBE_CLUSTER = Api(60, "DescribeCluster", 0, 2, 0)
DESCRIBE_TOPIC_PARTITIONS = Api(75, "DescribeTopicPartitions", 0, 0, 0)

SERVED: dict[int, Api] = {
    api.key: api
    for api in (
        PRODUCE,
        FETCH,
        LIST_OFFSETS,
        METADATA,
        FIND_COORDINATOR,
        API_VERSIONS,
        CREATE_TOPICS,
        DELETE_TOPICS,
        DELETE_RECORDS,
        INIT_PRODUCER_ID,
        OFFSET_FOR_LEADER_EPOCH,
        DESCRIBE_CONFIGS,
        ALTER_CONFIGS,
        DESCRIBE_LOG_DIRS,
        CREATE_PARTITIONS,
        INCREMENTAL_ALTER_CONFIGS,
        DESCRIBE_CLUSTER,
        DESCRIBE_TOPIC_PARTITIONS,
    )
}

ADVERTISED_OLDEST = {PRODUCE.key: 0}
"""librdkafka switches compression off unless Produce is advertised from 0 (KAFKA-18659); 0 to 2 are refused."""
