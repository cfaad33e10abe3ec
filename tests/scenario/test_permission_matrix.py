"""Each API with no right, with each right missing in turn, and with exactly the rights that the table says.

Generated from the table (``broker/permissions.py``): without a right the response has the code of a refusal or names
nothing, nothing is done and nothing is told; with exactly the needed rights there is no refusal. The requests go
through the dispatcher of a real broker, with the rights of a client that ACLs limit.
"""

import asyncio
import dataclasses
import datetime
import json
import uuid
from collections.abc import Awaitable
from enum import Enum

import pytest
from kio.serial import entity_reader
from kio.serial.errors import OutOfBoundValue

from skep.app import Broker
from skep.base.errors import ErrorCode
from skep.broker.dispatch import Dispatcher
from skep.broker.handlers.skep_command import COMMANDS
from skep.broker.permissions import COMMAND_NEEDS, PERMISSIONS, Need
from skep.broker.request import Request
from skep.metadata.cluster_image import ACLS, ClusterImage
from skep.records.builder import build_batch
from skep.security.acls.acl import ResourcePattern, Rule, entry_name, fields_of
from skep.security.acls.authorizer import Authorizer
from skep.security.acls.cached_access import CachedAccess
from skep.security.operations import CLUSTER_NAME, Operation, Permission, ResourceType
from skep.security.principal import Principal
from skep.wire import apis
from skep.wire.codec import decode_request, request_class, response_class
from skep.wire.headers import response_header
from tests.kio_entities import written

TOPIC, GROUP, CLUSTER = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER
TRANSACTIONAL_ID = ResourceType.TRANSACTIONAL_ID
NAMES = {TOPIC: "orders", GROUP: "readers", CLUSTER: CLUSTER_NAME, TRANSACTIONAL_ID: "payer"}
MALLORY = Principal("mallory")
REFUSALS = {
    ErrorCode.topic_authorization_failed,
    ErrorCode.group_authorization_failed,
    ErrorCode.cluster_authorization_failed,
    ErrorCode.transactional_id_authorization_failed,
}
IMPLIED_BY = {
    Operation.DESCRIBE: {Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER},
    Operation.DESCRIBE_CONFIGS: {Operation.ALTER_CONFIGS},
}
CONCRETE = set(Operation) - {Operation.ANY, Operation.ALL}
SECOND = datetime.timedelta(seconds=1)
BATCH = build_batch([(b"k", b"v", -1, ())])
TOPIC_PARTITION = {"name": "orders", "partitions": [{"partition_index": 0}]}
SHARE_STATE = {"group_id": "readers", "topics": [{"topic_id": uuid.UUID(int=1), "partitions": [{"partition": 0}]}]}


def fetch(replica_id=-1, **more):
    partition = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1000, "current_leader_epoch": -1}
    topic = {"topic": "orders", "partitions": [partition]}
    return {
        "replica_id": replica_id,
        "max_wait": SECOND * 0,
        "min_bytes": 0,
        "max_bytes": 1000,
        "topics": [topic],
        **more,
    }


def config(kind, name):
    return {"resource_type": kind, "resource_name": name}


def set_config(kind, name, option, value):
    configs = [{"name": option, "value": value, "config_operation": 0}]
    return {**config(kind, name), "configs": configs}


ACL_FILTER = {
    "resource_type_filter": 1,
    "resource_name_filter": None,
    "pattern_type_filter": 1,
    "principal_filter": None,
    "host_filter": None,
    "operation": 1,
    "permission_type": 1,
}
ACL = {
    "resource_type": 2,
    "resource_name": "x",
    "resource_pattern_type": 3,
    "principal": "User:x",
    "host": "*",
    "operation": 3,
    "permission_type": 3,
}


class Case:
    """A request, and the rights that it needs in addition to, or instead of, those in the table."""

    def __init__(self, api, version, *needs, label="", lists=False, **body):
        self.api, self.version, self.body, self.lists = api, version, body, lists
        row = PERMISSIONS[api.key]
        self.needs = needs or (*row.request, *row.items)
        self.label = f"{api.name}{label}"


def produce(is_transactional=False):
    batch = (
        BATCH
        if not is_transactional
        else build_batch(
            [(b"k", b"v", -1, ())], producer_id=1, producer_epoch=0, base_sequence=0, is_transactional=True
        )
    )
    data = {"name": "orders", "partition_data": [{"index": 0, "records": batch}]}
    return {
        "acks": 1,
        "timeout": SECOND,
        "topic_data": [data],
        "transactional_id": "payer" if is_transactional else None,
    }


CASES = [
    Case(apis.PRODUCE, 9, Need(Operation.WRITE, TOPIC), **produce()),
    Case(apis.PRODUCE, 9, label=" in a transaction", **produce(is_transactional=True)),
    Case(apis.FETCH, 11, **fetch()),
    Case(apis.FETCH, 11, Need(Operation.CLUSTER_ACTION, CLUSTER), label=" of a follower", **fetch(replica_id=7)),
    Case(
        apis.LIST_OFFSETS,
        5,
        topics=[{"name": "orders", "partitions": [{"partition_index": 0, "timestamp": -2}]}],
        replica_id=-1,
    ),
    *(
        Case(api, version, Need(Operation.CLUSTER_ACTION, CLUSTER), label=" of a broker", **body)
        for api, version, body in (
            (apis.METADATA, 9, {"topics": [{"name": "orders"}], "allow_auto_topic_creation": False}),
            (apis.DESCRIBE_PRODUCERS, 0, {"topics": [{"name": "orders", "partition_indexes": [0]}]}),
            (
                apis.LIST_OFFSETS,
                5,
                {"topics": [{"name": "orders", "partitions": [{"partition_index": 0, "timestamp": -2}]}]},
            ),
        )
    ),
    Case(apis.METADATA, 9, topics=[{"name": "orders"}], allow_auto_topic_creation=False),
    Case(apis.METADATA, 9, lists=True, label=" of all", topics=None, allow_auto_topic_creation=False),
    Case(
        apis.METADATA,
        9,
        Need(Operation.DESCRIBE, TOPIC),
        Need(Operation.CREATE, TOPIC),
        label=" that creates",
        topics=[{"name": "orders-new"}],
        allow_auto_topic_creation=True,
    ),
    Case(
        apis.OFFSET_COMMIT,
        8,
        group_id="readers",
        generation_id_or_member_epoch=-1,
        member_id="",
        topics=[{"name": "orders", "partitions": [{"partition_index": 0, "committed_offset": 1}]}],
    ),
    Case(
        apis.OFFSET_FETCH, 7, group_id="readers", topics=[{"name": "orders", "partition_indexes": [0]}],
        require_stable=False,
    ),
    Case(apis.OFFSET_FETCH, 7, label=" of all", group_id="readers", topics=None, require_stable=False, lists=True),
    Case(apis.FIND_COORDINATOR, 3, Need(Operation.DESCRIBE, GROUP), key="readers", key_type=0),
    Case(
        apis.FIND_COORDINATOR, 4, Need(Operation.DESCRIBE, TRANSACTIONAL_ID), label=" of an id",
        key_type=1, coordinator_keys=["payer"],
    ),
    Case(
        apis.FIND_COORDINATOR, 6, Need(Operation.CLUSTER_ACTION, CLUSTER), label=" of a share partition",
        key_type=2, coordinator_keys=["readers:AAAAAAAAAAAAAAAAAAAAAA:0"],
    ),
    Case(
        apis.JOIN_GROUP, 5, group_id="readers", session_timeout=SECOND * 10, rebalance_timeout=SECOND * 10,
        member_id="", protocol_type="consumer", protocols=[{"name": "range", "metadata": b""}],
    ),
    Case(apis.HEARTBEAT, 4, group_id="readers", generation_id=1, member_id="m"),
    Case(apis.LEAVE_GROUP, 2, group_id="readers", member_id="m"),
    Case(apis.SYNC_GROUP, 3, group_id="readers", generation_id=1, member_id="m", assignments=[]),
    Case(apis.DESCRIBE_GROUPS, 4, groups=["readers"], include_authorized_operations=False),
    Case(apis.LIST_GROUPS, 4, states_filter=[], lists=True),
    Case(
        apis.LIST_GROUPS, 4, Need(Operation.DESCRIBE, CLUSTER), label=" by the cluster", states_filter=[], lists=True
    ),
    Case(
        apis.CREATE_TOPICS, 5, timeout=SECOND, validate_only=False,
        topics=[{"name": "orders", "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}],
    ),
    Case(
        apis.CREATE_TOPICS, 5, Need(Operation.CREATE, CLUSTER), label=" by the cluster", timeout=SECOND,
        validate_only=False,
        topics=[{"name": "orders-2", "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}],
    ),
    Case(apis.DELETE_TOPICS, 5, topic_names=["orders"], timeout=SECOND),
    Case(
        apis.DELETE_RECORDS, 2, timeout=SECOND,
        topics=[{"name": "orders", "partitions": [{"partition_index": 0, "offset": 1}]}],
    ),
    Case(
        apis.INIT_PRODUCER_ID, 4, Need(Operation.WRITE, TRANSACTIONAL_ID), label=" of a transaction",
        transactional_id="payer", transaction_timeout=SECOND, producer_id=-1, producer_epoch=-1,
    ),
    Case(
        apis.INIT_PRODUCER_ID, 4, Need(Operation.IDEMPOTENT_WRITE, CLUSTER), transactional_id=None,
        transaction_timeout=SECOND, producer_id=-1, producer_epoch=-1,
    ),
    Case(
        apis.INIT_PRODUCER_ID, 4, Need(Operation.WRITE, TOPIC), label=" by a topic", transactional_id=None,
        transaction_timeout=SECOND, producer_id=-1, producer_epoch=-1,
    ),
    Case(
        apis.OFFSET_FOR_LEADER_EPOCH, 3, replica_id=-2,
        topics=[{"topic": "orders", "partitions": [{"partition": 0, "leader_epoch": 0, "current_leader_epoch": -1}]}],
    ),
    Case(
        apis.OFFSET_FOR_LEADER_EPOCH, 3, Need(Operation.CLUSTER_ACTION, CLUSTER), label=" of a follower", replica_id=2,
        topics=[{"topic": "orders", "partitions": [{"partition": 0, "leader_epoch": 0, "current_leader_epoch": -1}]}],
    ),
    Case(
        apis.ADD_PARTITIONS_TO_TXN, 3, Need(Operation.WRITE, TRANSACTIONAL_ID), Need(Operation.WRITE, TOPIC),
        v3_and_below_transactional_id="payer", v3_and_below_producer_id=1, v3_and_below_producer_epoch=0,
        v3_and_below_topics=[{"name": "orders", "partitions": [0]}],
    ),
    Case(apis.ADD_PARTITIONS_TO_TXN, 4, Need(Operation.CLUSTER_ACTION, CLUSTER), label=" of brokers", transactions=[]),
    Case(
        apis.ADD_OFFSETS_TO_TXN, 3, transactional_id="payer", producer_id=1, producer_epoch=0, group_id="readers"
    ),
    Case(apis.END_TXN, 3, transactional_id="payer", producer_id=1, producer_epoch=0, committed=True),
    Case(apis.WRITE_TXN_MARKERS, 1, Need(Operation.CLUSTER_ACTION, CLUSTER), markers=[
        {"producer_id": 1, "producer_epoch": 0, "transaction_result": True, "coordinator_epoch": 0,
         "topics": [{"name": "orders", "partition_indexes": [0]}]},
    ]),
    Case(apis.WRITE_TXN_MARKERS, 1, Need(Operation.ALTER, CLUSTER), label=" of an admin", markers=[
        {"producer_id": 1, "producer_epoch": 0, "transaction_result": True, "coordinator_epoch": 0,
         "topics": [{"name": "orders", "partition_indexes": [0]}]},
    ]),
    Case(
        apis.TXN_OFFSET_COMMIT, 3, transactional_id="payer", group_id="readers", producer_id=1, producer_epoch=0,
        generation_id=-1, member_id="", group_instance_id=None,
        topics=[{"name": "orders", "partitions": [
            {"partition_index": 0, "committed_offset": 1, "committed_leader_epoch": -1, "committed_metadata": ""},
        ]}],
    ),
    Case(apis.DESCRIBE_ACLS, 2, **ACL_FILTER),
    Case(apis.CREATE_ACLS, 2, creations=[ACL]),
    Case(apis.DELETE_ACLS, 2, filters=[ACL_FILTER]),
    *(
        Case(apis.DESCRIBE_CONFIGS, 3, Need(Operation.DESCRIBE_CONFIGS, kind), label=f" of {kind.name}",
             resources=[config(number, name)], include_synonyms=False)
        for kind, number, name in ((TOPIC, 2, "orders"), (GROUP, 32, "readers"), (CLUSTER, 4, "1"))
    ),
    *(
        Case(apis.ALTER_CONFIGS, 1, Need(Operation.ALTER_CONFIGS, kind), label=f" of {kind.name}", validate_only=False,
             resources=[set_config(number, name, option, value)])
        for kind, number, name, option, value in (
            (TOPIC, 2, "orders", "retention.ms", "100000"),
            (GROUP, 32, "readers", "consumer.session.timeout.ms", "50000"),
            (CLUSTER, 4, "", "num.partitions", "2"),
        )
    ),
    *(
        Case(apis.INCREMENTAL_ALTER_CONFIGS, 1, Need(Operation.ALTER_CONFIGS, kind), label=f" of {kind.name}",
             validate_only=False, resources=[set_config(number, name, option, value)])
        for kind, number, name, option, value in (
            (TOPIC, 2, "orders", "retention.ms", "200000"),
            (GROUP, 32, "readers", "consumer.session.timeout.ms", "51000"),
            (CLUSTER, 4, "", "num.partitions", "3"),
        )
    ),
    Case(apis.ALTER_REPLICA_LOG_DIRS, 2, dirs=[{"path": "/x", "topics": [{"name": "orders", "partitions": [0]}]}]),
    Case(apis.DESCRIBE_LOG_DIRS, 4, topics=None, lists=True),
    Case(apis.CREATE_PARTITIONS, 2, topics=[{"name": "orders", "count": 2, "assignments": None}], timeout=SECOND,
         validate_only=False),
    Case(apis.DELETE_GROUPS, 2, groups_names=["readers"]),
    Case(apis.ELECT_LEADERS, 2, election_type=0, topic_partitions=None, timeout=SECOND),
    Case(apis.ALTER_PARTITION_REASSIGNMENTS, 0, timeout=SECOND, topics=[
        {"name": "orders", "partitions": [{"partition_index": 0, "replicas": None}]},
    ]),
    Case(apis.LIST_PARTITION_REASSIGNMENTS, 0, timeout=SECOND, topics=None),
    Case(apis.OFFSET_DELETE, 0, group_id="readers", topics=[TOPIC_PARTITION]),
    Case(apis.DESCRIBE_CLIENT_QUOTAS, 1, components=[], strict=False),
    Case(apis.ALTER_CLIENT_QUOTAS, 1, validate_only=False, entries=[
        {"entity": [{"entity_type": "user", "entity_name": "x"}],
         "ops": [{"key": "producer_byte_rate", "value": 1000.0, "remove": False}]},
    ]),
    Case(apis.DESCRIBE_USER_SCRAM_CREDENTIALS, 0, users=None, lists=True),
    Case(apis.ALTER_USER_SCRAM_CREDENTIALS, 0, deletions=[], upsertions=[
        {"name": "x", "mechanism": 1, "iterations": 4096, "salt": b"s" * 16, "salted_password": b"p" * 32},
    ]),
    Case(apis.DESCRIBE_QUORUM, 0, topics=[]),
    Case(apis.DESCRIBE_PRODUCERS, 0, topics=[{"name": "orders", "partition_indexes": [0]}]),
    Case(apis.UNREGISTER_BROKER, 0, broker_id=99),
    Case(apis.DESCRIBE_TRANSACTIONS, 0, Need(Operation.DESCRIBE, TRANSACTIONAL_ID), transactional_ids=["payer"]),
    Case(apis.LIST_TRANSACTIONS, 0, state_filters=[], producer_id_filters=[], lists=True),
    Case(
        apis.CONSUMER_GROUP_HEARTBEAT, 1, group_id="modern", member_id="m", member_epoch=0, instance_id=None,
        rack_id=None, rebalance_timeout=SECOND * 10, subscribed_topic_names=["orders"], subscribed_topic_regex=None,
        server_assignor=None, topic_partitions=[],
    ),
    Case(apis.CONSUMER_GROUP_DESCRIBE, 0, group_ids=["modern"], include_authorized_operations=False),
    Case(apis.LIST_CONFIG_RESOURCES, 1, resource_types=[2], lists=True),
    Case(apis.DESCRIBE_TOPIC_PARTITIONS, 0, topics=[{"name": "orders"}], response_partition_limit=10, cursor=None),
    Case(
        apis.DESCRIBE_TOPIC_PARTITIONS, 0, label=" of all", topics=[], response_partition_limit=10, cursor=None,
        lists=True,
    ),
    Case(apis.SHARE_GROUP_HEARTBEAT, 1, group_id="sharers", member_id="m", member_epoch=0, rack_id=None,
         subscribed_topic_names=["orders"]),
    Case(apis.SHARE_GROUP_DESCRIBE, 1, group_ids=["sharers"],
         include_authorized_operations=False),
    Case(
        apis.SHARE_FETCH, 1, label=" that begins", group_id="readers", member_id="m", share_session_epoch=0,
        max_wait=SECOND * 0, min_bytes=0, max_bytes=1000, max_records=10, batch_size=10, topics="by id",
        forgotten_topics_data=[],
    ),
    Case(apis.SHARE_ACKNOWLEDGE, 1, Need(Operation.READ, GROUP), group_id="readers", member_id="m",
         share_session_epoch=1, topics=[]),
    *(
        Case(api, 0, **SHARE_STATE)
        for api in (
            apis.INITIALIZE_SHARE_GROUP_STATE, apis.READ_SHARE_GROUP_STATE, apis.WRITE_SHARE_GROUP_STATE,
            apis.DELETE_SHARE_GROUP_STATE, apis.READ_SHARE_GROUP_STATE_SUMMARY,
        )
    ),
    Case(apis.DESCRIBE_SHARE_GROUP_OFFSETS, 0, groups=[
        {"group_id": "readers", "topics": [{"topic_name": "orders", "partitions": [0]}]},
    ]),
    Case(apis.ALTER_SHARE_GROUP_OFFSETS, 0, group_id="sharers", topics=[
        {"topic_name": "orders", "partitions": [{"partition_index": 0, "start_offset": 0}]},
    ]),
    Case(apis.DELETE_SHARE_GROUP_OFFSETS, 0, group_id="sharers", topics=[{"topic_name": "orders"}]),
    *(
        Case(apis.SKEP_COMMAND, 0, *needs, label=f" {name}", command=name, arguments=json.dumps({
            argument: {"group": "readers", "topic": "orders", "partition": 0, "user": "x", "hash": None,
                       "members": ["m"], "topics": [["orders", "00000000-0000-0000-0000-000000000001"]],
                       "deliveries": [[0, 1]], "ranges": [[0, 0]], "offset": 0, "delay_ms": 1,
                       "principal": "User:x", "operation": "read", "resource": "topic", "name": "orders"}[argument]
            for argument, declared in COMMANDS[name].arguments.items() if declared.is_required
        }).encode())
        for name, needs in COMMAND_NEEDS.items() if needs
    ),
]  # fmt: skip
"""One request of each API that needs rights, several where they depend on what it names."""


@pytest.fixture(scope="module")
def scene(tmp_path_factory):
    with asyncio.Runner() as runner:
        started = Scene(runner, tmp_path_factory.mktemp("matrix"))
        yield started
        runner.run(started.broker.stop())


class _Captured(Broker):
    def _services(self, coordinators):
        self.captured = super()._services(coordinators)
        return self.captured


class Scene:
    """A broker with a topic, a group and secrets that nobody may know."""

    def __init__(self, runner, directory):
        self.run = runner.run
        self.broker = runner.run(self._start(directory))
        self.services = self.broker.captured
        self.dispatcher = Dispatcher(self.services)
        self.reset()

    async def _start(self, directory):
        broker = _Captured(
            {
                "log.dirs": str(directory),
                "listeners": "PLAINTEXT://127.0.0.1:0",
                "authorizer.class.name": "skep",
                "super.users": "User:ANONYMOUS",
                "offsets.topic.num.partitions": "1",
                "transaction.state.log.num.partitions": "1",
                "share.coordinator.state.topic.num.partitions": "1",
                "auto.create.topics.enable": "true",
            }
        )
        await broker.start()
        return broker

    def reset(self):
        """Makes sure that the topics are there, with some records, and the groups."""
        for name in ("orders", "orders-secret"):
            if name not in self.services.catalog.image.topics:
                topic = {"name": name, "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}
                self.ask(apis.CREATE_TOPICS, 5, None, timeout=SECOND, validate_only=False, topics=[topic])
                produced = {"name": name, "partition_data": [{"index": 0, "records": BATCH}]}
                body = {"acks": 1, "timeout": SECOND, "topic_data": [produced], "transactional_id": None}
                self.ask(apis.PRODUCE, 9, None, **body)
        for group in ("readers", "readers-secret"):
            self.ask(apis.FIND_COORDINATOR, 3, None, key=group, key_type=0)
            offset = {"partition_index": 0, "committed_offset": 1, "committed_leader_epoch": -1}
            topics = [{"name": "orders", "partitions": [offset]}, {"name": "orders-secret", "partitions": [offset]}]
            self.ask(
                apis.OFFSET_COMMIT, 8, None, group_id=group, generation_id_or_member_epoch=-1, member_id="",
                group_instance_id=None, topics=topics,
            )  # fmt: skip
        heartbeat = {"member_id": "first", "member_epoch": 0, "rack_id": None, "subscribed_topic_names": ["orders"]}
        self.ask(apis.SHARE_GROUP_HEARTBEAT, 1, None, group_id="sharers", **heartbeat)
        heartbeat |= {"instance_id": None, "rebalance_timeout": SECOND * 10, "subscribed_topic_regex": None}
        heartbeat |= {"server_assignor": None, "topic_partitions": []}
        self.ask(apis.CONSUMER_GROUP_HEARTBEAT, 1, None, group_id="modern", **heartbeat)
        for name in ("payer", "payer-secret"):
            self.ask(apis.FIND_COORDINATOR, 3, None, key=name, key_type=1)
            body = {"transactional_id": name, "transaction_timeout": SECOND, "producer_id": -1, "producer_epoch": -1}
            self.ask(apis.INIT_PRODUCER_ID, 4, None, **body)

    def access(self, rights):
        """The rights of a client with exactly these ACLs."""
        rules = {}
        for operation, kind, name in rights:
            pattern = ResourcePattern(kind, name)
            rules.setdefault(pattern, set()).add(Rule(str(MALLORY), "*", operation, Permission.ALLOW))
        entries = {entry_name(pattern): fields_of(some) for pattern, some in rules.items()}
        authorizer = Authorizer()
        authorizer.follow(ClusterImage.of("c", entries={ACLS: entries}))
        return CachedAccess(authorizer, MALLORY, "192.0.2.1")

    def ask(self, api, version, access, **body):
        if body.get("topics") == "by id":
            topic_id = self.services.catalog.image.topics["orders"].topic_id
            body["topics"] = [{"topic_id": topic_id, "partitions": [{"partition_index": 0}]}]
        frame = written(request_class(api.key, version), body)
        request = Request(
            api, version, 7, "test", "192.0.2.1", decode_request(api.key, version, memoryview(frame), 0), len(frame)
        )
        if access is not None:
            request.access = access
        return self.run(self._answered(request))

    async def _answered(self, request):
        parts = self.dispatcher.handle(request)
        if isinstance(parts, Awaitable):
            parts = await parts
        data = b"".join(part if isinstance(part, bytes | bytearray | memoryview) else _read(part) for part in parts)
        header = response_header(request.api.key, request.version, request.correlation_id)
        reader = entity_reader(response_class(request.api.key, request.version))
        try:
            response, _ = reader(memoryview(data).toreadonly(), len(header))
        except OutOfBoundValue:
            return data  # kio reads no time of -1, which a transaction that has not begun has
        return response

    def state(self):
        """What a request could change."""
        image, services = self.services.catalog.image, self.services
        ends = {
            name: services.replicas.partition(name, 0).log.log_end_offset
            for name in ("orders", "orders-secret")
            if name in image.topics
        }
        starts = {name: services.replicas.partition(name, 0).log.log_start_offset for name in ends}
        groups = self.run(services.groups.list_groups(set(), set()))
        return (
            dict(image.topics),
            {kind: dict(entries) for kind, entries in image.entries.items()},
            dict(image.broker_configs),
            dict(image.group_configs),
            ends,
            starts,
            sorted((group["group_id"], group["group_state"]) for group in groups),
        )


def _read(region):
    return bytes(region.read()) if hasattr(region, "read") else bytes(len(region))


def leaves(value):
    """Everything in a response that is no structure."""
    if dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            yield from leaves(getattr(value, field.name))
    elif isinstance(value, tuple | list):
        for one in value:
            yield from leaves(one)
    else:
        yield value


def codes(response):
    found = {one for one in leaves(response) if isinstance(one, Enum)}
    return {ErrorCode(one) for one in found if isinstance(one, ErrorCode)}


def rights(needs):
    return (
        {(need.operation, need.resource, NAMES[need.resource]) for need in needs}
        | {
            (need.operation, TOPIC, name)
            for need in needs
            if need.resource is TOPIC
            for name in ("orders-new", "orders-2")
        }
        | {(need.operation, GROUP, name) for need in needs if need.resource is GROUP for name in ("modern", "sharers")}
    )


def other_rights(needs, missing):
    """The rights of the others, and on the resource of the missing one everything that does not include it."""
    useless = CONCRETE - {missing.operation} - IMPLIED_BY.get(missing.operation, set())
    # Other operations on the same resource that the API accepts instead.
    useless -= (
        {Operation.ALTER, Operation.CLUSTER_ACTION, Operation.CREATE, Operation.DELETE, Operation.DESCRIBE}
        if (missing.resource is CLUSTER)
        else set()
    )
    held = {(operation, missing.resource, NAMES[missing.resource]) for operation in useless}
    return held | rights([need for need in needs if need != missing])


def secrets(scene):
    topic = scene.services.catalog.image.topics.get("orders-secret")
    return {"orders-secret", "readers-secret", "payer-secret", None if topic is None else topic.topic_id} - {None}


def check_refused(scene, case, access):
    before = scene.state()
    response = scene.ask(case.api, case.version, access, **case.body)
    found = codes(response)
    if not case.lists:
        assert found & REFUSALS, response
    assert not any(isinstance(one, str) and "secret" in one for one in leaves(response)), response
    assert not secrets(scene) & {one for one in leaves(response) if one.__hash__ is not None}
    if case.lists:
        told = {one for one in leaves(response) if isinstance(one, str)} & {"orders", "readers", "payer"}
        assert not told or found & REFUSALS, response
    assert scene.state() == before


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.label)
def test_without_rights_it_is_refused(scene, case):
    check_refused(scene, case, scene.access(()))


@pytest.mark.parametrize(
    ("case", "missing"),
    [(case, need) for case in CASES for need in case.needs],
    ids=lambda one: one.label if isinstance(one, Case) else f"{one.operation.name}-{one.resource.name}",
)
def test_with_one_right_missing_it_is_refused(scene, case, missing):
    if case.lists and missing.resource is not CLUSTER and len(case.needs) > 1 and missing.resource is TOPIC:
        access = scene.access(other_rights(case.needs, missing))
        response = scene.ask(case.api, case.version, access, **case.body)
        assert "orders" not in set(map(str, leaves(response)))
        return
    check_refused(scene, case, scene.access(other_rights(case.needs, missing)))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.label)
def test_with_its_rights_it_is_not_refused(scene, case):
    scene.reset()
    response = scene.ask(case.api, case.version, scene.access(rights(case.needs)), **case.body)
    assert not codes(response) & REFUSALS, response
    if not any(need.resource is CLUSTER for need in case.needs):
        assert not any(isinstance(one, str) and "secret" in one for one in leaves(response)), response


def test_every_api_that_needs_rights_has_a_case():
    needy = {key for key, row in PERMISSIONS.items() if row.request or row.items or row.check}
    assert needy <= {case.api.key for case in CASES}
