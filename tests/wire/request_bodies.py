"""Requests that ask for as much as an API can answer, with the fields of all its versions."""

import datetime
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from skep.base.errors import ErrorCode
from skep.base.ids import BrokerId
from skep.metadata.model import NO_LEADER, TopicRecord, id_text
from skep.records.builder import NewRecord, build_batch
from skep.wire import apis
from skep.wire.apis import Api

TOPIC = "orders"
AWAY = BrokerId(9)
"""A broker that is not running."""
TOPIC_RESOURCE, BROKER_RESOURCE, GROUP_RESOURCE = 2, 4, 32
SECOND = datetime.timedelta(seconds=1)

OFFSET = {"partition_index": 0, "committed_offset": 5, "committed_leader_epoch": 0, "committed_metadata": "m"}


def body_for(served: Any, api: Api, version: int) -> Mapping[str, Any]:
    """The request; what it needs (a topic, a group, a transaction) is made first, through ``served.ask``."""
    if (coordinated := _COORDINATED.get(api)) is not None:
        name = f"{api.name}-{version}-{next(served.numbers)}"
        for key_type in (0, 1):
            served.ask(apis.FIND_COORDINATOR, 4, key_type=key_type, coordinator_keys=[name])
        return coordinated(served, name, version)
    body = _plain_bodies(served, api, version)
    assert body is not None, f"there is no request for {api.name}"
    return body


def _plain_bodies(served: Any, api: Api, version: int) -> Mapping[str, Any] | None:
    fresh = f"{api.name}-{version}-{next(served.numbers)}"
    topic_id = served.services.catalog.image.topics[TOPIC].topic_id
    resources = [
        {"resource_type": kind, "resource_name": name, "configuration_keys": None, "configs": []}
        for kind, name in ((TOPIC_RESOURCE, TOPIC), (BROKER_RESOURCE, "1"), (BROKER_RESOURCE, ""), (99, "what"))
    ]
    change = {"name": "flush.ms", "value": "5", "config_operation": 0}
    partition = {
        "partition": 0,
        "partition_index": 0,
        "index": 0,
        "current_leader_epoch": -1,
        "leader_epoch": 0,
        "timestamp": -2,
        "offset": 0,
        "fetch_offset": 0,
        "partition_max_bytes": 1 << 20,
        "records": build_batch([NewRecord(b"k", b"v", 1_700_000_000_000)]),
    }
    # An old version knows only names, so a topic id is left out by the codec; a new one wants only the id.
    topics = [
        {"name": name, "topic": name, "partitions": [partition], "partition_data": [partition]}
        for name in (TOPIC, "no-such-topic")
    ]
    upsertion = {"name": fresh, "mechanism": 1, "iterations": 4096, "salt": b"s", "salted_password": b"p"}
    acl_filter = {
        "resource_type_filter": 2,
        "resource_name_filter": fresh,
        "pattern_type_filter": 3,
        "operation": 1,
        "permission_type": 1,
    }
    acls = [
        {
            "resource_type": 2,
            "resource_name": fresh,
            "resource_pattern_type": 3,
            "principal": principal,
            "host": "*",
            "operation": 3,
            "permission_type": 3,
        }
        for principal in ("User:ann", "ann")
    ]
    quotas = [
        {
            "entity": [{"entity_type": "user", "entity_name": fresh}],
            "ops": [{"key": "producer_byte_rate", "value": 1024.0}],
        }
    ]
    bodies: dict[Api, Mapping[str, Any]] = {
        apis.DESCRIBE_ACLS: acl_filter,
        apis.CREATE_ACLS: {"creations": acls},
        apis.DELETE_ACLS: {"filters": [acl_filter]},
        apis.DESCRIBE_CLIENT_QUOTAS: {"components": [{"entity_type": "user", "match_type": 2, "match": None}]},
        apis.ALTER_CLIENT_QUOTAS: {"entries": quotas},
        apis.DESCRIBE_USER_SCRAM_CREDENTIALS: {"users": None},
        apis.PRODUCE: {"acks": 1, "timeout": datetime.timedelta(seconds=1), "topic_data": topics},
        apis.FETCH: {
            "max_wait": datetime.timedelta(0),
            "min_bytes": 1,
            "topics": [{**topics[0], "topic_id": topic_id}, topics[1]],
        },
        apis.LIST_OFFSETS: {"topics": topics},
        apis.METADATA: {
            "topics": [{"name": TOPIC}, {"name": "not/a/name"}],
            "include_cluster_authorized_operations": True,
            "include_topic_authorized_operations": True,
        },
        apis.SKEP_COMMAND: {"command": "commands", "arguments": b"{}"},
        apis.SASL_HANDSHAKE: {"mechanism": "PLAIN"},
        apis.SASL_AUTHENTICATE: {"auth_bytes": b"\0ann\0wonderland"},
        apis.API_VERSIONS: {"client_software_name": "test", "client_software_version": "1"},
        apis.CREATE_TOPICS: {
            "topics": [
                {"name": name, "num_partitions": 2, "replication_factor": 1, "configs": [change]}
                for name in (fresh, "not/a/name")
            ]
        },
        apis.DELETE_TOPICS: {
            "topic_names": [fresh, "no-such-topic"],
            "topics": [{"name": fresh}, {"name": "no-such-topic"}],
        },
        apis.DELETE_RECORDS: {"topics": topics, "timeout": datetime.timedelta(seconds=1)},
        apis.FIND_COORDINATOR: {"key": "g", "coordinator_keys": ["g", "h"]},
        apis.INIT_PRODUCER_ID: {"transactional_id": None, "transaction_timeout": datetime.timedelta(seconds=1)},
        apis.OFFSET_FOR_LEADER_EPOCH: {"topics": topics},
        apis.DESCRIBE_CONFIGS: {
            "resources": resources,
            "include_synonyms": True,
            "include_documentation": True,
        },
        apis.ALTER_CONFIGS: {"resources": [{**resource, "configs": [change]} for resource in resources]},
        apis.INCREMENTAL_ALTER_CONFIGS: {"resources": [{**resource, "configs": [change]} for resource in resources]},
        apis.DESCRIBE_LOG_DIRS: {"topics": None},
        apis.CREATE_PARTITIONS: {
            "topics": [{"name": name, "count": 9, "assignments": None} for name in (fresh, "no-such-topic")]
        },
        apis.DESCRIBE_CLUSTER: {"include_cluster_authorized_operations": True},
        apis.DESCRIBE_TOPIC_PARTITIONS: {
            "topics": [{"name": TOPIC}, {"name": "no-such-topic"}],
            "response_partition_limit": 1,
        },
        apis.ELECT_LEADERS: {
            "topic_partitions": [{"topic": name, "partitions": [0]} for name in (fresh, "no-such-topic")]
        },
        apis.ALTER_PARTITION_REASSIGNMENTS: {
            "topics": [
                {"name": name, "partitions": [{"partition_index": 0, "replicas": replicas}]}
                for name, replicas in ((TOPIC, [1]), (TOPIC, None), ("no-such-topic", [1]))
            ]
        },
        apis.LIST_PARTITION_REASSIGNMENTS: {"topics": None},
        apis.UNREGISTER_BROKER: {"broker_id": AWAY},
        apis.ALTER_REPLICA_LOG_DIRS: {
            "dirs": [
                {"path": path, "topics": [{"name": name, "partitions": [0]} for name in (TOPIC, "no-such-topic")]}
                for path in ("/elsewhere", served.services.replicas.data_dir)
            ]
        },
        apis.DESCRIBE_QUORUM: {
            "topics": [
                {"topic_name": name, "partitions": [{"partition_index": 0}]} for name in ("__cluster_metadata", TOPIC)
            ]
        },
        apis.LIST_CONFIG_RESOURCES: {"resource_types": []},
        apis.ALTER_USER_SCRAM_CREDENTIALS: {
            "deletions": [{"name": "nobody", "mechanism": 1}],
            "upsertions": [upsertion],
        },
    }
    catalog = served.services.catalog
    if api in (apis.DELETE_TOPICS, apis.CREATE_PARTITIONS, apis.ELECT_LEADERS):
        served.runner.run(catalog.create_topic(fresh, [[BrokerId(1)]]))
    if api in (apis.DESCRIBE_ACLS, apis.DELETE_ACLS):
        served.ask(apis.CREATE_ACLS, 3, creations=acls)
    if api == apis.DESCRIBE_CLIENT_QUOTAS:
        served.ask(apis.ALTER_CLIENT_QUOTAS, 1, entries=quotas)
    if api == apis.ELECT_LEADERS:
        served.runner.run(catalog.change_topic(fresh, _without_leader))
    if api == apis.UNREGISTER_BROKER:
        served.runner.run(catalog.create_topic(fresh, [[AWAY]]))
    return bodies.get(api)


def _without_leader(topic: TopicRecord) -> TopicRecord:
    return replace(topic, partitions=tuple(one._replace(leader=NO_LEADER) for one in topic.partitions))


# Groups.


def _joined(served: Any, group: str) -> dict[str, Any]:
    """A group of one member that leads it and has not synced; what the member's requests say of it."""
    response = served.ask(
        apis.JOIN_GROUP,
        0,
        group_id=group,
        session_timeout=30 * SECOND,
        member_id="",
        protocol_type="consumer",
        protocols=[{"name": "range", "metadata": b"m"}],
    )
    assert response.get("error_code", ErrorCode.none) is ErrorCode.none
    return {"group_id": group, "member_id": response["member_id"], "generation_id": response["generation_id"]}


def _synced(served: Any, group: str) -> dict[str, Any]:
    member = _joined(served, group)
    served.ask(
        apis.SYNC_GROUP, 0, **member, assignments=[{"member_id": member["member_id"], "assignment": b"assigned"}]
    )
    return member


def _join(served: Any, group: str, version: int) -> Mapping[str, Any]:
    return {
        **_joined(served, group),
        "session_timeout": 30 * SECOND,
        "rebalance_timeout": 30 * SECOND,
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": b"m"}],
        "reason": "why not",
    }


def _sync(served: Any, group: str, version: int) -> Mapping[str, Any]:
    member = _joined(served, group)
    assignments = [{"member_id": member["member_id"], "assignment": b"assigned"}]
    return {**member, "protocol_type": "consumer", "protocol_name": "range", "assignments": assignments}


def _leave(served: Any, group: str, version: int) -> Mapping[str, Any]:
    member = _synced(served, group)
    return {**member, "members": [{"member_id": member["member_id"]}, {"member_id": "nobody"}]}


def _describe_groups(served: Any, group: str, version: int) -> Mapping[str, Any]:
    _synced(served, group)
    return {"groups": [group, "unheard-of"], "include_authorized_operations": True}


def _consumer_heartbeat(served: Any, group: str, version: int) -> Mapping[str, Any]:
    return {
        "group_id": group,
        "member_id": "AAAAAAAAAAAAAAAAAAAAAA" if version >= 1 else "",
        "member_epoch": 0,
        "rebalance_timeout": 30 * SECOND,
        "subscribed_topic_names": [TOPIC],
        "topic_partitions": [],
    }


def _describe_consumer_groups(served: Any, group: str, version: int) -> Mapping[str, Any]:
    served.ask(apis.CONSUMER_GROUP_HEARTBEAT, 1, **_consumer_heartbeat(served, group, 1))
    return {"group_ids": [group, "unheard-of"], "include_authorized_operations": True}


def _committed(served: Any, group: str) -> None:
    served.ask(apis.OFFSET_COMMIT, 8, **_commit(served, group, 8))


def _commit(served: Any, group: str, version: int) -> Mapping[str, Any]:
    topic_id = served.services.catalog.image.topics[TOPIC].topic_id
    topics = [{"name": TOPIC, "topic_id": topic_id, "partitions": [OFFSET]}, {"name": "none", "partitions": [OFFSET]}]
    return {"group_id": group, "generation_id_or_member_epoch": -1, "member_id": "", "topics": topics}


def _fetch_offsets(served: Any, group: str, version: int) -> Mapping[str, Any]:
    _committed(served, group)
    topic_id = served.services.catalog.image.topics[TOPIC].topic_id
    topics = [{"name": TOPIC, "topic_id": topic_id, "partition_indexes": [0, 1]}]
    return {
        "group_id": group,
        "topics": topics,
        "groups": [{"group_id": name, "member_epoch": -1, "topics": topics} for name in (group, "unheard-of")],
    }


def _delete_offsets(served: Any, group: str, version: int) -> Mapping[str, Any]:
    _committed(served, group)
    return {
        "group_id": group,
        "topics": [{"name": name, "partitions": [{"partition_index": 0}]} for name in (TOPIC, "none")],
    }


def _delete_groups(served: Any, group: str, version: int) -> Mapping[str, Any]:
    _committed(served, group)
    return {"groups_names": [group, "unheard-of"]}


def _list_groups(served: Any, group: str, version: int) -> Mapping[str, Any]:
    _committed(served, group)
    return {"states_filter": ["Empty"], "types_filter": ["classic"]}


# Transactions.


def _producer(served: Any, name: str) -> dict[str, Any]:
    response = served.ask(apis.INIT_PRODUCER_ID, 2, transactional_id=name, transaction_timeout=30 * SECOND)
    return {
        "transactional_id": name,
        "producer_id": response["producer_id"],
        "producer_epoch": response["producer_epoch"],
    }


def _begun(served: Any, name: str) -> dict[str, Any]:
    producer = _producer(served, name)
    served.ask(apis.ADD_PARTITIONS_TO_TXN, 3, **_partitions(producer))
    return producer


def _partitions(producer: Mapping[str, Any]) -> Mapping[str, Any]:
    named = {f"v3_and_below_{field}": value for field, value in producer.items()}
    topics = [{"name": TOPIC, "partitions": [0]}]
    # From version 4 on there are several transactions in a request.
    return {**named, "v3_and_below_topics": topics, "transactions": [{**producer, "topics": topics}]}


def _end(served: Any, name: str, version: int) -> Mapping[str, Any]:
    return {**_begun(served, name), "committed": True}


def _commit_in_transaction(served: Any, name: str, version: int) -> Mapping[str, Any]:
    producer = _producer(served, name)
    served.ask(apis.ADD_OFFSETS_TO_TXN, 0, **producer, group_id=name)
    topics = [{"name": topic, "partitions": [OFFSET]} for topic in (TOPIC, "none")]
    return {**producer, "group_id": name, "generation_id": -1, "member_id": "", "topics": topics}


def _markers(served: Any, name: str, version: int) -> Mapping[str, Any]:
    producer = _begun(served, name)
    topics = [{"name": topic, "partition_indexes": [0]} for topic in (TOPIC, "none")]
    return {"markers": [{**producer, "transaction_result": False, "coordinator_epoch": 0, "topics": topics}]}


def _share_heartbeat(served: Any, group: str, version: int) -> Mapping[str, Any]:
    served.ask(apis.FIND_COORDINATOR, 6, key_type=0, coordinator_keys=[group])
    return {"group_id": group, "member_id": "m", "member_epoch": 0, "subscribed_topic_names": [TOPIC]}


def _describe_share_groups(served: Any, group: str, version: int) -> Mapping[str, Any]:
    served.ask(apis.SHARE_GROUP_HEARTBEAT, 1, **_share_heartbeat(served, group, 1))
    return {"group_ids": [group, "unheard-of"], "include_authorized_operations": True}


def _share_group_offsets(served: Any, group: str) -> None:
    served.ask(apis.SHARE_GROUP_HEARTBEAT, 1, **_share_heartbeat(served, group, 1))
    served.ask(apis.SHARE_GROUP_HEARTBEAT, 1, group_id=group, member_id="m", member_epoch=-1)


def _describe_share_group_offsets(served: Any, group: str, version: int) -> Mapping[str, Any]:
    _share_group_offsets(served, group)
    topics = [{"topic_name": topic, "partitions": [0]} for topic in (TOPIC, "none")]
    return {"groups": [{"group_id": group, "topics": None}, {"group_id": "other", "topics": topics}]}


def _alter_share_group_offsets(served: Any, group: str, version: int) -> Mapping[str, Any]:
    _share_group_offsets(served, group)
    partitions = [{"partition_index": index, "start_offset": 0} for index in (0, 9)]
    return {"group_id": group, "topics": [{"topic_name": topic, "partitions": partitions} for topic in (TOPIC, "none")]}


def _delete_share_group_offsets(served: Any, group: str, version: int) -> Mapping[str, Any]:
    _share_group_offsets(served, group)
    return {"group_id": group, "topics": [{"topic_name": topic} for topic in (TOPIC, "none")]}


def _share_state(served: Any, group: str, version: int) -> Mapping[str, Any]:
    """The fields of all requests for share states."""
    topic_id = served.services.catalog.image.topics[TOPIC].topic_id
    served.ask(apis.FIND_COORDINATOR, 6, key_type=2, coordinator_keys=[f"{group}:{id_text(topic_id)}:0"])
    partition = {
        "partition": 0,
        "state_epoch": 0,
        "leader_epoch": 0,
        "start_offset": 0,
        "delivery_complete_count": 0,
        "state_batches": [{"first_offset": 5, "last_offset": 9, "delivery_state": 2, "delivery_count": 1}],
    }
    return {"group_id": group, "topics": [{"topic_id": topic_id, "partitions": [partition]}]}


def _initialized_share_state(served: Any, group: str, version: int) -> Mapping[str, Any]:
    body = _share_state(served, group, version)
    served.ask(apis.INITIALIZE_SHARE_GROUP_STATE, 0, **body)
    served.ask(apis.WRITE_SHARE_GROUP_STATE, 1, **body)
    return body


def _share_fetch(served: Any, group: str, version: int) -> Mapping[str, Any]:
    _initialized_share_state(served, group, version)
    topic_id = served.services.catalog.image.topics[TOPIC].topic_id
    partitions = [{"partition_index": index, "acknowledgement_batches": []} for index in (0, 7)]
    return {
        "group_id": group,
        "member_id": "cook",
        "share_session_epoch": 0,
        "max_wait": datetime.timedelta(0),
        "min_bytes": 1,
        "max_bytes": 1 << 20,
        "max_records": 500,
        "batch_size": 500,
        "topics": [{"topic_id": topic_id, "partitions": partitions}],
        "forgotten_topics_data": [],
    }


def _share_acknowledge(served: Any, group: str, version: int) -> Mapping[str, Any]:
    body = _share_fetch(served, group, version)
    served.ask(apis.SHARE_FETCH, 2, **body)
    batch = {"first_offset": 0, "last_offset": 0, "acknowledge_types": [1]}
    partitions = [{"partition_index": index, "acknowledgement_batches": [batch]} for index in (0, 7)]
    topics = [{"topic_id": body["topics"][0]["topic_id"], "partitions": partitions}]
    return {"group_id": group, "member_id": "cook", "share_session_epoch": 1, "topics": topics}


def _describe_transactions(served: Any, name: str, version: int) -> Mapping[str, Any]:
    _begun(served, name)
    return {"transactional_ids": [name, "unheard-of"]}


def _list_transactions(served: Any, name: str, version: int) -> Mapping[str, Any]:
    _begun(served, name)
    return {"state_filters": ["Ongoing"], "producer_id_filters": [], "duration_filter": -1}


_COORDINATED: dict[Api, Callable[[Any, str, int], Mapping[str, Any]]] = {
    apis.JOIN_GROUP: _join,
    apis.SYNC_GROUP: _sync,
    apis.HEARTBEAT: lambda served, name, version: _synced(served, name),
    apis.LEAVE_GROUP: _leave,
    apis.DESCRIBE_GROUPS: _describe_groups,
    apis.CONSUMER_GROUP_HEARTBEAT: _consumer_heartbeat,
    apis.CONSUMER_GROUP_DESCRIBE: _describe_consumer_groups,
    apis.OFFSET_COMMIT: _commit,
    apis.OFFSET_FETCH: _fetch_offsets,
    apis.OFFSET_DELETE: _delete_offsets,
    apis.DELETE_GROUPS: _delete_groups,
    apis.LIST_GROUPS: _list_groups,
    apis.ADD_PARTITIONS_TO_TXN: lambda served, name, version: _partitions(_producer(served, name)),
    apis.ADD_OFFSETS_TO_TXN: lambda served, name, version: {**_producer(served, name), "group_id": name},
    apis.END_TXN: _end,
    apis.TXN_OFFSET_COMMIT: _commit_in_transaction,
    apis.WRITE_TXN_MARKERS: _markers,
    apis.SHARE_GROUP_HEARTBEAT: _share_heartbeat,
    apis.SHARE_GROUP_DESCRIBE: _describe_share_groups,
    apis.DESCRIBE_SHARE_GROUP_OFFSETS: _describe_share_group_offsets,
    apis.ALTER_SHARE_GROUP_OFFSETS: _alter_share_group_offsets,
    apis.DELETE_SHARE_GROUP_OFFSETS: _delete_share_group_offsets,
    apis.INITIALIZE_SHARE_GROUP_STATE: _share_state,
    apis.READ_SHARE_GROUP_STATE: _initialized_share_state,
    apis.WRITE_SHARE_GROUP_STATE: _initialized_share_state,
    apis.DELETE_SHARE_GROUP_STATE: _initialized_share_state,
    apis.READ_SHARE_GROUP_STATE_SUMMARY: _initialized_share_state,
    apis.SHARE_FETCH: _share_fetch,
    apis.SHARE_ACKNOWLEDGE: _share_acknowledge,
    apis.DESCRIBE_TRANSACTIONS: _describe_transactions,
    apis.LIST_TRANSACTIONS: _list_transactions,
    apis.DESCRIBE_PRODUCERS: lambda served, name, version: {
        "topics": [{"name": topic, "partition_indexes": [0]} for topic in (TOPIC, "none")]
    },
}
