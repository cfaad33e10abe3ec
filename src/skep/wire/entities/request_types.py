"""The fields of the requests served, for mypy only. ``make types`` prints this from kio's classes.

A body is an object of kio's class for its version, never of a class here. A field has the type that it has in all
versions served, and is nullable if it is so in one of them. A comment names the versions of a field that not all of
them have: it is read after a check of ``request.version``, or with ``getattr`` and a default.
"""

from __future__ import annotations

from datetime import timedelta
from uuid import UUID

from skep.base.ids import BrokerId, ProducerId


class ProduceRequest:
    class TopicProduceData:
        name: str
        partition_data: tuple[ProduceRequest.PartitionProduceData, ...]

    class PartitionProduceData:
        index: int
        records: bytes | None

    transactional_id: str | None
    acks: int
    timeout: timedelta
    topic_data: tuple[ProduceRequest.TopicProduceData, ...]


class FetchRequest:
    class Topic:
        topic: str  # 4 to 12
        partitions: tuple[FetchRequest.Partition, ...]
        topic_id: UUID | None  # 13 to 18

    class Partition:
        partition: int
        fetch_offset: int
        partition_max_bytes: int
        log_start_offset: int  # 5 to 18
        current_leader_epoch: int  # 9 to 18
        last_fetched_epoch: int  # 12 to 18
        replica_directory_id: UUID | None  # 17 to 18
        high_watermark: int  # 18 only

    class ForgottenTopic:
        topic: str  # 7 to 12
        partitions: tuple[int, ...]
        topic_id: UUID | None  # 13 to 18

    class ReplicaState:
        replica_id: BrokerId
        replica_epoch: int

    replica_id: BrokerId  # 4 to 14
    max_wait: timedelta
    min_bytes: int
    max_bytes: int
    isolation_level: int
    topics: tuple[FetchRequest.Topic, ...]
    session_id: int  # 7 to 18
    session_epoch: int  # 7 to 18
    forgotten_topics_data: tuple[FetchRequest.ForgottenTopic, ...]  # 7 to 18
    rack_id: str  # 11 to 18
    cluster_id: str | None  # 12 to 18
    replica_state: FetchRequest.ReplicaState  # 15 to 18


class ListOffsetsRequest:
    class Topic:
        name: str
        partitions: tuple[ListOffsetsRequest.Partition, ...]

    class Partition:
        partition_index: int
        timestamp: int
        current_leader_epoch: int  # 4 to 11

    replica_id: BrokerId
    topics: tuple[ListOffsetsRequest.Topic, ...]
    isolation_level: int  # 2 to 11
    timeout: timedelta  # 10 to 11


class MetadataRequest:
    class Topic:
        name: str | None
        topic_id: UUID | None  # 10 to 13

    topics: tuple[MetadataRequest.Topic, ...] | None
    allow_auto_topic_creation: bool  # 4 to 13
    include_cluster_authorized_operations: bool  # 8 to 10
    include_topic_authorized_operations: bool  # 8 to 13


class OffsetCommitRequest:
    class Topic:
        name: str  # 2 to 9
        partitions: tuple[OffsetCommitRequest.Partition, ...]
        topic_id: UUID | None  # 10 only

    class Partition:
        partition_index: int
        committed_offset: int
        committed_metadata: str | None
        committed_leader_epoch: int  # 6 to 10

    group_id: str
    generation_id_or_member_epoch: int
    member_id: str
    retention_time: timedelta  # 2 to 4
    topics: tuple[OffsetCommitRequest.Topic, ...]
    group_instance_id: str | None  # 7 to 10


class OffsetFetchRequest:
    class Topic:
        name: str
        partition_indexes: tuple[int, ...]

    class Group:
        group_id: str
        topics: tuple[OffsetFetchRequest.Topics, ...] | None
        member_id: str | None  # 9 to 10
        member_epoch: int  # 9 to 10

    class Topics:
        name: str  # 8 to 9
        partition_indexes: tuple[int, ...]
        topic_id: UUID | None  # 10 only

    group_id: str  # 1 to 7
    topics: tuple[OffsetFetchRequest.Topic, ...] | None  # 1 to 7
    require_stable: bool  # 7 to 10
    groups: tuple[OffsetFetchRequest.Group, ...]  # 8 to 10


class FindCoordinatorRequest:
    key: str  # 0 to 3
    key_type: int  # 1 to 6
    coordinator_keys: tuple[str, ...]  # 4 to 6


class JoinGroupRequest:
    class Protocol:
        name: str
        metadata: bytes

    group_id: str
    session_timeout: timedelta
    member_id: str
    protocol_type: str
    protocols: tuple[JoinGroupRequest.Protocol, ...]
    rebalance_timeout: timedelta  # 1 to 9
    group_instance_id: str | None  # 5 to 9
    reason: str | None  # 8 to 9


class HeartbeatRequest:
    group_id: str
    generation_id: int
    member_id: str
    group_instance_id: str | None  # 3 to 4


class LeaveGroupRequest:
    class MemberIdentity:
        member_id: str
        group_instance_id: str | None
        reason: str | None  # 5 only

    group_id: str
    member_id: str  # 0 to 2
    members: tuple[LeaveGroupRequest.MemberIdentity, ...]  # 3 to 5


class SyncGroupRequest:
    class Assignment:
        member_id: str
        assignment: bytes

    group_id: str
    generation_id: int
    member_id: str
    assignments: tuple[SyncGroupRequest.Assignment, ...]
    group_instance_id: str | None  # 3 to 5
    protocol_type: str | None  # 5 only
    protocol_name: str | None  # 5 only


class DescribeGroupsRequest:
    groups: tuple[str, ...]
    include_authorized_operations: bool  # 3 to 6


class ListGroupsRequest:
    states_filter: tuple[str, ...]  # 4 to 5
    types_filter: tuple[str, ...]  # 5 only


class SaslHandshakeRequest:
    mechanism: str


class ApiVersionsRequest:
    client_software_name: str  # 3 to 4
    client_software_version: str  # 3 to 4


class CreateTopicsRequest:
    class CreatableTopic:
        name: str
        num_partitions: int
        replication_factor: int
        assignments: tuple[CreateTopicsRequest.CreatableReplicaAssignment, ...]
        configs: tuple[CreateTopicsRequest.CreatableTopicConfig, ...]

    class CreatableReplicaAssignment:
        partition_index: int
        broker_ids: tuple[BrokerId, ...]

    class CreatableTopicConfig:
        name: str
        value: str | None

    topics: tuple[CreateTopicsRequest.CreatableTopic, ...]
    timeout: timedelta
    validate_only: bool


class DeleteTopicsRequest:
    class DeleteTopicState:
        name: str | None
        topic_id: UUID | None

    topic_names: tuple[str, ...]  # 1 to 5
    timeout: timedelta
    topics: tuple[DeleteTopicsRequest.DeleteTopicState, ...]  # 6 only


class DeleteRecordsRequest:
    class Topic:
        name: str
        partitions: tuple[DeleteRecordsRequest.Partition, ...]

    class Partition:
        partition_index: int
        offset: int

    topics: tuple[DeleteRecordsRequest.Topic, ...]
    timeout: timedelta


class InitProducerIdRequest:
    transactional_id: str | None
    transaction_timeout: timedelta
    producer_id: ProducerId  # 3 to 5
    producer_epoch: int  # 3 to 5


class OffsetForLeaderEpochRequest:
    class OffsetForLeaderTopic:
        topic: str
        partitions: tuple[OffsetForLeaderEpochRequest.OffsetForLeaderPartition, ...]

    class OffsetForLeaderPartition:
        partition: int
        current_leader_epoch: int
        leader_epoch: int

    topics: tuple[OffsetForLeaderEpochRequest.OffsetForLeaderTopic, ...]
    replica_id: BrokerId  # 3 to 4


class AddPartitionsToTxnRequest:
    class Topic:
        name: str
        partitions: tuple[int, ...]

    class Transaction:
        transactional_id: str
        producer_id: ProducerId
        producer_epoch: int
        verify_only: bool
        topics: tuple[AddPartitionsToTxnRequest.Topic, ...]

    v3_and_below_transactional_id: str  # 0 to 3
    v3_and_below_producer_id: ProducerId  # 0 to 3
    v3_and_below_producer_epoch: int  # 0 to 3
    v3_and_below_topics: tuple[AddPartitionsToTxnRequest.Topic, ...]  # 0 to 3
    transactions: tuple[AddPartitionsToTxnRequest.Transaction, ...]  # 4 only


class AddOffsetsToTxnRequest:
    transactional_id: str
    producer_id: ProducerId
    producer_epoch: int
    group_id: str


class EndTxnRequest:
    transactional_id: str
    producer_id: ProducerId
    producer_epoch: int
    committed: bool


class WriteTxnMarkersRequest:
    class WritableTxnMarker:
        producer_id: ProducerId
        producer_epoch: int
        transaction_result: bool
        topics: tuple[WriteTxnMarkersRequest.WritableTxnMarkerTopic, ...]
        coordinator_epoch: int
        transaction_version: int  # 2 only

    class WritableTxnMarkerTopic:
        name: str
        partition_indexes: tuple[int, ...]

    markers: tuple[WriteTxnMarkersRequest.WritableTxnMarker, ...]


class TxnOffsetCommitRequest:
    class Topic:
        name: str
        partitions: tuple[TxnOffsetCommitRequest.Partition, ...]

    class Partition:
        partition_index: int
        committed_offset: int
        committed_metadata: str | None
        committed_leader_epoch: int  # 2 to 5

    transactional_id: str
    group_id: str
    producer_id: ProducerId
    producer_epoch: int
    topics: tuple[TxnOffsetCommitRequest.Topic, ...]
    generation_id: int  # 3 to 5
    member_id: str  # 3 to 5
    group_instance_id: str | None  # 3 to 5


class DescribeAclsRequest:
    resource_type_filter: int
    resource_name_filter: str | None
    pattern_type_filter: int
    principal_filter: str | None
    host_filter: str | None
    operation: int
    permission_type: int


class CreateAclsRequest:
    class AclCreation:
        resource_type: int
        resource_name: str
        resource_pattern_type: int
        principal: str
        host: str
        operation: int
        permission_type: int

    creations: tuple[CreateAclsRequest.AclCreation, ...]


class DeleteAclsRequest:
    class Filter:
        resource_type_filter: int
        resource_name_filter: str | None
        pattern_type_filter: int
        principal_filter: str | None
        host_filter: str | None
        operation: int
        permission_type: int

    filters: tuple[DeleteAclsRequest.Filter, ...]


class DescribeConfigsRequest:
    class Resource:
        resource_type: int
        resource_name: str
        configuration_keys: tuple[str, ...] | None

    resources: tuple[DescribeConfigsRequest.Resource, ...]
    include_synonyms: bool
    include_documentation: bool  # 3 to 4


class AlterConfigsRequest:
    class Resource:
        resource_type: int
        resource_name: str
        configs: tuple[AlterConfigsRequest.AlterableConfig, ...]

    class AlterableConfig:
        name: str
        value: str | None

    resources: tuple[AlterConfigsRequest.Resource, ...]
    validate_only: bool


class AlterReplicaLogDirsRequest:
    class AlterReplicaLogDir:
        path: str
        topics: tuple[AlterReplicaLogDirsRequest.AlterReplicaLogDirTopic, ...]

    class AlterReplicaLogDirTopic:
        name: str
        partitions: tuple[int, ...]

    dirs: tuple[AlterReplicaLogDirsRequest.AlterReplicaLogDir, ...]


class DescribeLogDirsRequest:
    class DescribableLogDirTopic:
        topic: str
        partitions: tuple[int, ...]

    topics: tuple[DescribeLogDirsRequest.DescribableLogDirTopic, ...] | None


class SaslAuthenticateRequest:
    auth_bytes: bytes


class CreatePartitionsRequest:
    class Topic:
        name: str
        count: int
        assignments: tuple[CreatePartitionsRequest.Assignment, ...] | None

    class Assignment:
        broker_ids: tuple[BrokerId, ...]

    topics: tuple[CreatePartitionsRequest.Topic, ...]
    timeout: timedelta
    validate_only: bool


class DeleteGroupsRequest:
    groups_names: tuple[str, ...]


class ElectLeadersRequest:
    class TopicPartitions:
        topic: str
        partitions: tuple[int, ...]

    topic_partitions: tuple[ElectLeadersRequest.TopicPartitions, ...] | None
    timeout: timedelta
    election_type: int  # 1 to 2


class IncrementalAlterConfigsRequest:
    class AlterConfigsResource:
        resource_type: int
        resource_name: str
        configs: tuple[IncrementalAlterConfigsRequest.AlterableConfig, ...]

    class AlterableConfig:
        name: str
        config_operation: int
        value: str | None

    resources: tuple[IncrementalAlterConfigsRequest.AlterConfigsResource, ...]
    validate_only: bool


class AlterPartitionReassignmentsRequest:
    class ReassignableTopic:
        name: str
        partitions: tuple[AlterPartitionReassignmentsRequest.ReassignablePartition, ...]

    class ReassignablePartition:
        partition_index: int
        replicas: tuple[BrokerId, ...] | None

    timeout: timedelta
    topics: tuple[AlterPartitionReassignmentsRequest.ReassignableTopic, ...]
    allow_replication_factor_change: bool  # 1 only


class ListPartitionReassignmentsRequest:
    class Topics:
        name: str
        partition_indexes: tuple[int, ...]

    timeout: timedelta
    topics: tuple[ListPartitionReassignmentsRequest.Topics, ...] | None


class OffsetDeleteRequest:
    class Topic:
        name: str
        partitions: tuple[OffsetDeleteRequest.Partition, ...]

    class Partition:
        partition_index: int

    group_id: str
    topics: tuple[OffsetDeleteRequest.Topic, ...]


class DescribeClientQuotasRequest:
    class ComponentData:
        entity_type: str
        match_type: int
        match: str | None

    components: tuple[DescribeClientQuotasRequest.ComponentData, ...]
    strict: bool


class AlterClientQuotasRequest:
    class EntryData:
        entity: tuple[AlterClientQuotasRequest.EntityData, ...]
        ops: tuple[AlterClientQuotasRequest.OpData, ...]

    class EntityData:
        entity_type: str
        entity_name: str | None

    class OpData:
        key: str
        value: float
        remove: bool

    entries: tuple[AlterClientQuotasRequest.EntryData, ...]
    validate_only: bool


class DescribeUserScramCredentialsRequest:
    class UserName:
        name: str

    users: tuple[DescribeUserScramCredentialsRequest.UserName, ...] | None


class AlterUserScramCredentialsRequest:
    class ScramCredentialDeletion:
        name: str
        mechanism: int

    class ScramCredentialUpsertion:
        name: str
        mechanism: int
        iterations: int
        salt: bytes
        salted_password: bytes

    deletions: tuple[AlterUserScramCredentialsRequest.ScramCredentialDeletion, ...]
    upsertions: tuple[AlterUserScramCredentialsRequest.ScramCredentialUpsertion, ...]


class DescribeQuorumRequest:
    class TopicData:
        topic_name: str
        partitions: tuple[DescribeQuorumRequest.PartitionData, ...]

    class PartitionData:
        partition_index: int

    topics: tuple[DescribeQuorumRequest.TopicData, ...]


class DescribeClusterRequest:
    include_cluster_authorized_operations: bool
    endpoint_type: int  # 1 to 2
    include_fenced_brokers: bool  # 2 only


class DescribeProducersRequest:
    class TopicRequest:
        name: str
        partition_indexes: tuple[int, ...]

    topics: tuple[DescribeProducersRequest.TopicRequest, ...]


class UnregisterBrokerRequest:
    broker_id: BrokerId


class DescribeTransactionsRequest:
    transactional_ids: tuple[str, ...]


class ListTransactionsRequest:
    state_filters: tuple[str, ...]
    producer_id_filters: tuple[ProducerId, ...]
    duration_filter: int  # 1 only


class ConsumerGroupHeartbeatRequest:
    class TopicPartitions:
        topic_id: UUID | None
        partitions: tuple[int, ...]

    group_id: str
    member_id: str
    member_epoch: int
    instance_id: str | None
    rack_id: str | None
    rebalance_timeout: timedelta
    subscribed_topic_names: tuple[str, ...] | None
    server_assignor: str | None
    topic_partitions: tuple[ConsumerGroupHeartbeatRequest.TopicPartitions, ...] | None
    subscribed_topic_regex: str | None  # 1 only


class ConsumerGroupDescribeRequest:
    group_ids: tuple[str, ...]
    include_authorized_operations: bool


class ListConfigResourcesRequest:
    resource_types: tuple[int, ...]  # 1 only


class DescribeTopicPartitionsRequest:
    class TopicRequest:
        name: str

    class Cursor:
        topic_name: str
        partition_index: int

    topics: tuple[DescribeTopicPartitionsRequest.TopicRequest, ...]
    response_partition_limit: int
    cursor: DescribeTopicPartitionsRequest.Cursor | None


class ShareGroupHeartbeatRequest:
    group_id: str
    member_id: str
    member_epoch: int
    rack_id: str | None
    subscribed_topic_names: tuple[str, ...] | None


class ShareGroupDescribeRequest:
    group_ids: tuple[str, ...]
    include_authorized_operations: bool


class ShareFetchRequest:
    class FetchTopic:
        topic_id: UUID | None
        partitions: tuple[ShareFetchRequest.FetchPartition, ...]

    class FetchPartition:
        partition_index: int
        acknowledgement_batches: tuple[ShareFetchRequest.AcknowledgementBatch, ...]

    class AcknowledgementBatch:
        first_offset: int
        last_offset: int
        acknowledge_types: tuple[int, ...]

    class ForgottenTopic:
        topic_id: UUID | None
        partitions: tuple[int, ...]

    group_id: str | None
    member_id: str | None
    share_session_epoch: int
    max_wait: timedelta
    min_bytes: int
    max_bytes: int
    max_records: int
    batch_size: int
    topics: tuple[ShareFetchRequest.FetchTopic, ...]
    forgotten_topics_data: tuple[ShareFetchRequest.ForgottenTopic, ...]
    share_acquire_mode: int  # 2 only
    is_renew_ack: bool  # 2 only


class ShareAcknowledgeRequest:
    class AcknowledgeTopic:
        topic_id: UUID | None
        partitions: tuple[ShareAcknowledgeRequest.AcknowledgePartition, ...]

    class AcknowledgePartition:
        partition_index: int
        acknowledgement_batches: tuple[ShareAcknowledgeRequest.AcknowledgementBatch, ...]

    class AcknowledgementBatch:
        first_offset: int
        last_offset: int
        acknowledge_types: tuple[int, ...]

    group_id: str | None
    member_id: str | None
    share_session_epoch: int
    topics: tuple[ShareAcknowledgeRequest.AcknowledgeTopic, ...]
    is_renew_ack: bool  # 2 only


class InitializeShareGroupStateRequest:
    class InitializeStateData:
        topic_id: UUID | None
        partitions: tuple[InitializeShareGroupStateRequest.PartitionData, ...]

    class PartitionData:
        partition: int
        state_epoch: int
        start_offset: int

    group_id: str
    topics: tuple[InitializeShareGroupStateRequest.InitializeStateData, ...]


class ReadShareGroupStateRequest:
    class ReadStateData:
        topic_id: UUID | None
        partitions: tuple[ReadShareGroupStateRequest.PartitionData, ...]

    class PartitionData:
        partition: int
        leader_epoch: int

    group_id: str
    topics: tuple[ReadShareGroupStateRequest.ReadStateData, ...]


class WriteShareGroupStateRequest:
    class WriteStateData:
        topic_id: UUID | None
        partitions: tuple[WriteShareGroupStateRequest.PartitionData, ...]

    class PartitionData:
        partition: int
        state_epoch: int
        leader_epoch: int
        start_offset: int
        state_batches: tuple[WriteShareGroupStateRequest.StateBatch, ...]
        skep_generation: int
        skep_batches: bytes
        delivery_complete_count: int  # 1 only

    class StateBatch:
        first_offset: int
        last_offset: int
        delivery_state: int
        delivery_count: int

    group_id: str
    topics: tuple[WriteShareGroupStateRequest.WriteStateData, ...]


class DeleteShareGroupStateRequest:
    class DeleteStateData:
        topic_id: UUID | None
        partitions: tuple[DeleteShareGroupStateRequest.PartitionData, ...]

    class PartitionData:
        partition: int

    group_id: str
    topics: tuple[DeleteShareGroupStateRequest.DeleteStateData, ...]


class ReadShareGroupStateSummaryRequest:
    class ReadStateSummaryData:
        topic_id: UUID | None
        partitions: tuple[ReadShareGroupStateSummaryRequest.PartitionData, ...]

    class PartitionData:
        partition: int
        leader_epoch: int

    group_id: str
    topics: tuple[ReadShareGroupStateSummaryRequest.ReadStateSummaryData, ...]


class DescribeShareGroupOffsetsRequest:
    class Group:
        group_id: str
        topics: tuple[DescribeShareGroupOffsetsRequest.Topic, ...] | None

    class Topic:
        topic_name: str
        partitions: tuple[int, ...]

    groups: tuple[DescribeShareGroupOffsetsRequest.Group, ...]


class AlterShareGroupOffsetsRequest:
    class Topic:
        topic_name: str
        partitions: tuple[AlterShareGroupOffsetsRequest.Partition, ...]

    class Partition:
        partition_index: int
        start_offset: int

    group_id: str
    topics: tuple[AlterShareGroupOffsetsRequest.Topic, ...]


class DeleteShareGroupOffsetsRequest:
    class Topic:
        topic_name: str

    group_id: str
    topics: tuple[DeleteShareGroupOffsetsRequest.Topic, ...]


class SkepCommandRequest:
    command: str
    arguments: bytes
