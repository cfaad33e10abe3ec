"""What one client can do with groups, offsets and transactions: ask for a hundred thousand of them, or have them."""

import datetime
import random
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from typing import Any

from bench import frames
from bench.groups import Member
from bench.peers import create_topic
from bench.raw_client import RawClient
from bench.stalls.stall import Stall, asking, request
from skep.base.errors import ErrorCode
from skep.testing import EmbeddedBroker
from skep.wire import apis
from skep.wire.apis import Api

TOPIC = "stalls"
GROUP = "large"
OFFSETS = 100_000
OFFSETS_AT_ONCE = 1_000
GROUPS = 100_000
TRANSACTIONAL_IDS = 150_000
IN_FLIGHT = 50
ASSIGNED_MEMBERS, ASSIGNED_PARTITIONS, ASSIGNED_TOPICS = 1_000, 10_000, 10
SESSION_MS = 6_000
EXPIRY_PATIENCE_S = 90
"""After the minute for which offsets are kept at the least."""
LONG_SESSIONS = {
    "group.consumer.session.timeout.ms": "600000",
    "group.consumer.min.session.timeout.ms": "600000",
    "group.consumer.max.session.timeout.ms": "600000",
}
SHORT_SESSIONS = {
    "group.consumer.session.timeout.ms": str(SESSION_MS),
    "group.consumer.min.session.timeout.ms": str(SESSION_MS),
    "group.consumer.heartbeat.interval.ms": "2000",
    "group.consumer.min.heartbeat.interval.ms": "2000",
}
HOSTILE = "(.?[a-d]?.{0,90}){1,20}x"

_ANY_TIME = datetime.timedelta(minutes=10)


# What is there before.


def _all(broker: EmbeddedBroker, wanted: Iterable[bytes]) -> None:
    """Sends all, ``IN_FLIGHT`` of them unanswered."""
    with RawClient(broker.bootstrap_servers) as client:
        under_way = 0
        for frame in wanted:
            if under_way == IN_FLIGHT:
                client.receive()
                under_way -= 1
            client.send(frame)
            under_way += 1
        for _ in range(under_way):
            client.receive()


def _find(broker: EmbeddedBroker, key: str, key_type: int = 0) -> None:
    """Makes the coordinator's topic, and waits until the coordinator serves."""
    with RawClient(broker.bootstrap_servers) as client:
        client.ask(request(apis.FIND_COORDINATOR, 3, {"key": key, "key_type": key_type}))


def _commit(group: str, partitions: Sequence[int]) -> bytes:
    wanted = [
        {"partition_index": index, "committed_offset": index, "committed_leader_epoch": -1, "committed_metadata": ""}
        for index in partitions
    ]
    body = {
        "group_id": group,
        "generation_id_or_member_epoch": -1,
        "member_id": "",
        "topics": [{"name": TOPIC, "partitions": wanted}],
    }
    return request(apis.OFFSET_COMMIT, 8, body)


def _with_topic(broker: EmbeddedBroker) -> None:
    create_topic(broker.bootstrap_servers, TOPIC)
    _find(broker, GROUP)


def _with_offsets(broker: EmbeddedBroker, groups: Sequence[str] = (GROUP,)) -> None:
    _with_topic(broker)
    for group in groups:
        starts = range(0, OFFSETS, OFFSETS_AT_ONCE)
        _all(broker, (_commit(group, range(start, start + OFFSETS_AT_ONCE)) for start in starts))


def _with_groups(broker: EmbeddedBroker, count: int = GROUPS) -> None:
    _with_topic(broker)
    _all(broker, (_commit(f"group-{number}", (0,)) for number in range(count)))


def _with_classic_members(broker: EmbeddedBroker, count: int = 500) -> None:
    _with_topic(broker)
    with ExitStack() as stack:
        members = [Member(stack.enter_context(RawClient(broker.bootstrap_servers)), GROUP) for _ in range(count)]
        for expected in (ErrorCode.member_id_required, ErrorCode.none):
            for member in members:
                member.send_join()
            for member in members:
                member.receive_join(expected)


def _heartbeat(member: int, **more: Any) -> bytes:
    body = {
        "group_id": GROUP,
        "member_id": f"member-{member}",
        "member_epoch": 0,
        "rebalance_timeout": _ANY_TIME,
        "topic_partitions": [],
        **more,
    }
    return request(apis.CONSUMER_GROUP_HEARTBEAT, 1, body)


def _assigned_topics() -> list[str]:
    return [f"assigned-{number}" for number in range(ASSIGNED_TOPICS)]


def _with_partitions(broker: EmbeddedBroker) -> None:
    for name in _assigned_topics():
        create_topic(broker.bootstrap_servers, name, ASSIGNED_PARTITIONS // ASSIGNED_TOPICS)
    _find(broker, GROUP)


def _members_join(broker: EmbeddedBroker, assignor: str, count: int) -> None:
    names = _assigned_topics()
    _all(
        broker,
        (
            _heartbeat(member, subscribed_topic_names=names, server_assignor=assignor if member % 2 else None)
            for member in range(count)
        ),
    )


def _with_consumers(broker: EmbeddedBroker) -> None:
    _with_partitions(broker)
    _members_join(broker, "uniform", ASSIGNED_MEMBERS)


def _with_transactional_ids(broker: EmbeddedBroker, count: int = TRANSACTIONAL_IDS) -> None:
    _find(broker, "id", 1)
    body = {"transaction_timeout": datetime.timedelta(minutes=1), "producer_id": -1, "producer_epoch": -1}
    _all(
        broker,
        (request(apis.INIT_PRODUCER_ID, 3, {**body, "transactional_id": f"id-{number}"}) for number in range(count)),
    )


def _with_long_names(broker: EmbeddedBroker) -> None:
    letters = random.Random(1)
    names = ["".join(letters.choices("abcdefgh", k=240)) for _ in range(300)]
    topics = [
        {"name": name, "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []} for name in names
    ]
    with RawClient(broker.bootstrap_servers) as client:
        client.ask(request(apis.CREATE_TOPICS, 5, {"topics": topics, "timeout": _ANY_TIME, "validate_only": False}))
    _find(broker, GROUP)


# What is done then.


def _offset_fetch_same() -> bytes:
    same = {"group_id": GROUP, "topics": None}
    return request(apis.OFFSET_FETCH, 8, {"groups": [same] * 20, "require_stable": False})


def _offset_fetch_named() -> bytes:
    topics = [{"name": TOPIC, "partition_indexes": list(range(OFFSETS))}]
    return request(apis.OFFSET_FETCH, 7, {"group_id": GROUP, "topics": topics, "require_stable": False})


def _offset_delete() -> bytes:
    topics = [{"name": TOPIC, "partitions": [{"partition_index": index} for index in range(OFFSETS)]}]
    return request(apis.OFFSET_DELETE, 0, {"group_id": GROUP, "topics": topics})


def _describe_configs() -> bytes:
    resources = [
        {"resource_type": 32, "resource_name": f"g{number}", "configuration_keys": None} for number in range(190_000)
    ]
    return request(apis.DESCRIBE_CONFIGS, 1, {"resources": resources, "include_synonyms": False})


def _describe_transactions() -> bytes:
    return request(apis.DESCRIBE_TRANSACTIONS, 0, {"transactional_ids": [f"id-{n}" for n in range(TRANSACTIONAL_IDS)]})


def _reload(api: Api, version: int, body: Any) -> Callable[[EmbeddedBroker], None]:
    """An ``act`` that asks until all is loaded, which the broker begins when it starts."""

    def act(broker: EmbeddedBroker) -> None:
        with RawClient(broker.bootstrap_servers) as client:
            while True:
                response = frames.body(api, version, client.ask(request(api, version, body)))
                if response.error_code is not ErrorCode.coordinator_load_in_progress:
                    return
                time.sleep(0.1)

    return act


def _assign(assignor: str) -> Callable[[EmbeddedBroker], None]:
    return lambda broker: _members_join(broker, assignor, ASSIGNED_MEMBERS)


def _until_expired(broker: EmbeddedBroker) -> None:
    time.sleep(SESSION_MS / 1000 + 3)


def _until_forgotten(broker: EmbeddedBroker) -> None:
    with RawClient(broker.bootstrap_servers) as client:
        for _ in range(EXPIRY_PATIENCE_S):
            answer = client.ask(request(apis.LIST_GROUPS, 4, {"states_filter": []}))
            if not frames.body(apis.LIST_GROUPS, 4, answer).groups:
                return
            time.sleep(1)


def _match(broker: EmbeddedBroker) -> None:
    with RawClient(broker.bootstrap_servers) as client:
        client.ask(_heartbeat(0, subscribed_topic_regex=HOSTILE))
        client.ask(request(apis.LIST_GROUPS, 4, {"states_filter": []}))


def _transaction(broker: EmbeddedBroker) -> None:
    with RawClient(broker.bootstrap_servers) as client:
        client.ask(request(apis.FIND_COORDINATOR, 3, {"key": "t", "key_type": 1}))
        body = {"transactional_id": "t", "transaction_timeout": datetime.timedelta(minutes=1)}
        made = frames.body(
            apis.INIT_PRODUCER_ID,
            3,
            client.ask(request(apis.INIT_PRODUCER_ID, 3, {**body, "producer_id": -1, "producer_epoch": -1})),
        )
        named = {"transactional_id": "t", "producer_id": made.producer_id, "producer_epoch": made.producer_epoch}
        added: dict[str, Any] = {f"v3_and_below_{name}": value for name, value in named.items()}
        added["v3_and_below_topics"] = [
            {"name": name, "partitions": list(range(ASSIGNED_PARTITIONS // ASSIGNED_TOPICS))}
            for name in _assigned_topics()
        ]
        client.ask(request(apis.ADD_PARTITIONS_TO_TXN, 3, added))
        client.ask(request(apis.END_TXN, 3, {**named, "committed": True}))
        state = None
        while state != "CompleteCommit":
            answer = client.ask(request(apis.DESCRIBE_TRANSACTIONS, 0, {"transactional_ids": ["t"]}))
            state = frames.body(apis.DESCRIBE_TRANSACTIONS, 0, answer).transaction_states[0].transaction_state
            time.sleep(0.05)


def _delete_groups(names: Sequence[str]) -> bytes:
    return request(apis.DELETE_GROUPS, 2, {"groups_names": list(names)})


STALLS = (
    Stall(
        "offset-fetch-same",
        f"OffsetFetch that names a group of {OFFSETS:,} offsets 20 times",
        asking(_offset_fetch_same()),
        _with_offsets,
    ),
    Stall(
        "offset-fetch-named",
        f"OffsetFetch of {OFFSETS:,} partitions by name",
        asking(_offset_fetch_named()),
        _with_topic,
    ),
    Stall(
        "offset-commit-many",
        f"OffsetCommit of {OFFSETS:,} partitions",
        asking(_commit(GROUP, range(OFFSETS))),
        _with_topic,
    ),
    Stall("offset-delete-many", f"OffsetDelete of {OFFSETS:,} partitions", asking(_offset_delete()), _with_offsets),
    Stall(
        "delete-group-large",
        f"DeleteGroups of a group of {OFFSETS:,} offsets",
        asking(_delete_groups([GROUP])),
        _with_offsets,
    ),
    Stall(
        "delete-groups",
        f"DeleteGroups of {GROUPS:,} groups",
        asking(_delete_groups([f"group-{number}" for number in range(GROUPS)])),
        _with_groups,
    ),
    Stall(
        "list-groups",
        f"ListGroups with {GROUPS:,} groups",
        asking(request(apis.LIST_GROUPS, 4, {"states_filter": []})),
        _with_groups,
    ),
    Stall(
        "describe-groups-same",
        "DescribeGroups that names a group of 500 members 1,000 times",
        asking(request(apis.DESCRIBE_GROUPS, 5, {"groups": [GROUP] * 1_000})),
        _with_classic_members,
    ),
    Stall(
        "consumer-describe-same",
        f"ConsumerGroupDescribe that names a group of {ASSIGNED_MEMBERS:,} members 100 times",
        asking(
            request(
                apis.CONSUMER_GROUP_DESCRIBE, 1, {"group_ids": [GROUP] * 100, "include_authorized_operations": False}
            )
        ),
        _with_consumers,
        LONG_SESSIONS,
    ),
    Stall("describe-configs-groups", "DescribeConfigs of 190,000 groups", asking(_describe_configs())),
    Stall(
        "list-transactions",
        f"ListTransactions with {TRANSACTIONAL_IDS:,} transactional ids",
        asking(request(apis.LIST_TRANSACTIONS, 0, {"state_filters": [], "producer_id_filters": []})),
        _with_transactional_ids,
    ),
    Stall(
        "describe-transactions",
        f"DescribeTransactions of {TRANSACTIONAL_IDS:,} transactional ids",
        asking(_describe_transactions()),
        _with_transactional_ids,
    ),
    Stall(
        "load-transactions",
        f"{TRANSACTIONAL_IDS:,} transactional ids are loaded",
        _reload(apis.LIST_TRANSACTIONS, 0, {"state_filters": ["Dead"], "producer_id_filters": []}),
        _with_transactional_ids,
        restarts=True,
    ),
    Stall(
        "load-offsets",
        f"5 groups of {OFFSETS:,} offsets each are loaded",
        _reload(apis.LIST_GROUPS, 4, {"states_filter": ["Dead"]}),
        lambda broker: _with_offsets(broker, [f"loaded-{number}" for number in range(5)]),
        restarts=True,
    ),
    Stall(
        "assign-uniform",
        f"{ASSIGNED_MEMBERS:,} members join a group of {ASSIGNED_PARTITIONS:,} partitions, uniform",
        _assign("uniform"),
        _with_partitions,
        LONG_SESSIONS,
    ),
    Stall(
        "assign-range",
        f"{ASSIGNED_MEMBERS:,} members join a group of {ASSIGNED_PARTITIONS:,} partitions, range",
        _assign("range"),
        _with_partitions,
        LONG_SESSIONS,
    ),
    Stall(
        "sessions-end",
        f"the sessions of {ASSIGNED_MEMBERS:,} members of a consumer group end together",
        _until_expired,
        _with_consumers,
        SHORT_SESSIONS,
    ),
    Stall(
        "offsets-expire",
        f"a group of {OFFSETS:,} offsets expires",
        _until_forgotten,
        _with_offsets,
        {"offsets.retention.check.interval.ms": "3000", "offsets.retention.minutes": "1"},
    ),
    Stall(
        "topic-regex",
        f"a topic expression of {len(HOSTILE)} characters over 300 names of 240",
        _match,
        _with_long_names,
    ),
    Stall(
        "large-transaction",
        f"a transaction of {ASSIGNED_PARTITIONS:,} partitions is begun and committed",
        _transaction,
        _with_partitions,
    ),
)
