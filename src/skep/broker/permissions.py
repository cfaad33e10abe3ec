"""The table of permissions: which operation on which resource each API needs. As in Kafka (KafkaApis, ControllerApis).

``request`` is what a request needs as a whole: the dispatcher checks it before the handler is called, and the handler's
``refuse`` makes the response. ``items`` is what each topic, group or other resource in a request needs: the handler
asks ``allowed`` for each. An API without a row is refused to everybody whose rights are limited.

Names that a client may not know are left out of lists (``is_visible``); the audit does not hear of these. A named topic
that a client may not describe gets the same error whether it exists or not.

IDEMPOTENT_WRITE is implied by WRITE on any topic (KIP-679). A follower is whoever sends a replica id: Kafka once
believed it (CVE-2018-1288), so it needs CLUSTER_ACTION.
"""

import operator
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from skep.base.errors import ErrorCode, KafkaError
from skep.base.loop.slicer import Work
from skep.broker.fetch.follower_fetch import follower_in
from skep.broker.request import AnyRequest
from skep.security.access import refusal
from skep.security.operations import CLUSTER_NAME, Operation, ResourceType
from skep.wire import apis

READ, WRITE, CREATE, DELETE = Operation.READ, Operation.WRITE, Operation.CREATE, Operation.DELETE
ALTER, DESCRIBE, CLUSTER_ACTION = Operation.ALTER, Operation.DESCRIBE, Operation.CLUSTER_ACTION
DESCRIBE_CONFIGS, ALTER_CONFIGS = Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS
IDEMPOTENT_WRITE = Operation.IDEMPOTENT_WRITE
TOPIC, GROUP, CLUSTER = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER
TRANSACTIONAL_ID = ResourceType.TRANSACTIONAL_ID

ADDS_FOR_SEVERAL = 4
"""The first version of AddPartitionsToTxn that brokers send to each other."""


class Need(NamedTuple):
    operation: Operation
    resource: ResourceType
    field: str | None = None
    """Where the request has the name of the resource. None: the cluster, or one of several names."""


class Permission(NamedTuple):
    """The row of an API. ``check`` is for what depends on more than the API; it raises KafkaError."""

    request: tuple[Need, ...] = ()
    items: tuple[Need, ...] = ()
    check: Callable[[AnyRequest], None] | None = None
    for_brokers: bool = False
    """Whether brokers send it to each other. CLUSTER_ACTION is enough then: it allows to copy every topic anyway."""


def _on_cluster(operation: Operation) -> Permission:
    return Permission((Need(operation, CLUSTER),))


def check_cluster(request: AnyRequest, operation: Operation) -> None:
    if not request.access.asked(request, operation, CLUSTER, CLUSTER_NAME):
        raise refusal(CLUSTER)


def _check_fetch(request: AnyRequest) -> None:
    if follower_in(request.body, request.version) is not None:
        check_cluster(request, CLUSTER_ACTION)


def _check_init_producer_id(request: AnyRequest) -> None:
    transactional_id = request.body.transactional_id
    if transactional_id is not None:
        check_named(request, WRITE, TRANSACTIONAL_ID, transactional_id)
    elif not request.access.really_allows_somewhere(WRITE, TOPIC):
        check_cluster(request, IDEMPOTENT_WRITE)


def _check_add_partitions(request: AnyRequest) -> None:
    if request.version >= ADDS_FOR_SEVERAL:
        check_cluster(request, CLUSTER_ACTION)
    else:
        check_named(request, WRITE, TRANSACTIONAL_ID, request.body.v3_and_below_transactional_id)


def _check_write_markers(request: AnyRequest) -> None:
    if not request.access.really_allows(ALTER, CLUSTER, CLUSTER_NAME):
        check_cluster(request, CLUSTER_ACTION)


_READ_GROUP = Need(READ, GROUP, "group_id")
_DELETE_GROUP = Need(DELETE, GROUP, "group_id")
_DESCRIBE_GROUP = Need(DESCRIBE, GROUP)
_WRITE_ID = Need(WRITE, TRANSACTIONAL_ID, "transactional_id")
_READ_TOPIC, _WRITE_TOPIC, _DESCRIBE_TOPIC = Need(READ, TOPIC), Need(WRITE, TOPIC), Need(DESCRIBE, TOPIC)

PERMISSIONS: Mapping[int, Permission] = {
    apis.PRODUCE.key: Permission(items=(_WRITE_TOPIC, Need(WRITE, TRANSACTIONAL_ID))),
    apis.FETCH.key: Permission(items=(_READ_TOPIC,), check=_check_fetch),
    apis.LIST_OFFSETS.key: Permission(items=(_DESCRIBE_TOPIC,), for_brokers=True),
    # Creating a topic that is named needs CREATE, on it or on the cluster.
    apis.METADATA.key: Permission(items=(_DESCRIBE_TOPIC,), for_brokers=True),
    apis.OFFSET_COMMIT.key: Permission((_READ_GROUP,), (_READ_TOPIC,)),
    apis.OFFSET_FETCH.key: Permission(items=(_DESCRIBE_GROUP, _DESCRIBE_TOPIC)),
    # Share partitions are for brokers: CLUSTER_ACTION.
    apis.FIND_COORDINATOR.key: Permission(
        items=(_DESCRIBE_GROUP, Need(DESCRIBE, TRANSACTIONAL_ID), Need(CLUSTER_ACTION, CLUSTER))
    ),
    apis.JOIN_GROUP.key: Permission((_READ_GROUP,)),
    apis.HEARTBEAT.key: Permission((_READ_GROUP,)),
    apis.LEAVE_GROUP.key: Permission((_READ_GROUP,)),
    apis.SYNC_GROUP.key: Permission((_READ_GROUP,)),
    apis.DESCRIBE_GROUPS.key: Permission(items=(_DESCRIBE_GROUP,)),
    # DESCRIBE on the cluster shows all groups.
    apis.LIST_GROUPS.key: Permission(items=(_DESCRIBE_GROUP,)),
    apis.SASL_HANDSHAKE.key: Permission(),
    apis.SASL_AUTHENTICATE.key: Permission(),
    apis.API_VERSIONS.key: Permission(),
    # On the topic or on the cluster.
    apis.CREATE_TOPICS.key: Permission(items=(Need(CREATE, TOPIC),)),
    apis.DELETE_TOPICS.key: Permission(items=(Need(DELETE, TOPIC),)),
    apis.DELETE_RECORDS.key: Permission(items=(Need(DELETE, TOPIC),)),
    apis.INIT_PRODUCER_ID.key: Permission(check=_check_init_producer_id),
    apis.OFFSET_FOR_LEADER_EPOCH.key: Permission(items=(_DESCRIBE_TOPIC,), for_brokers=True),
    apis.ADD_PARTITIONS_TO_TXN.key: Permission(items=(_WRITE_TOPIC,), check=_check_add_partitions),
    apis.ADD_OFFSETS_TO_TXN.key: Permission((_WRITE_ID, _READ_GROUP)),
    apis.END_TXN.key: Permission((_WRITE_ID,)),
    apis.WRITE_TXN_MARKERS.key: Permission(check=_check_write_markers),
    apis.TXN_OFFSET_COMMIT.key: Permission((_WRITE_ID, _READ_GROUP), (_READ_TOPIC,)),
    apis.DESCRIBE_ACLS.key: _on_cluster(DESCRIBE),
    apis.CREATE_ACLS.key: _on_cluster(ALTER),
    apis.DELETE_ACLS.key: _on_cluster(ALTER),
    apis.DESCRIBE_CONFIGS.key: Permission(
        items=(Need(DESCRIBE_CONFIGS, TOPIC), Need(DESCRIBE_CONFIGS, GROUP), Need(DESCRIBE_CONFIGS, CLUSTER))
    ),
    apis.ALTER_CONFIGS.key: Permission(
        items=(Need(ALTER_CONFIGS, TOPIC), Need(ALTER_CONFIGS, GROUP), Need(ALTER_CONFIGS, CLUSTER))
    ),
    apis.INCREMENTAL_ALTER_CONFIGS.key: Permission(
        items=(Need(ALTER_CONFIGS, TOPIC), Need(ALTER_CONFIGS, GROUP), Need(ALTER_CONFIGS, CLUSTER))
    ),
    apis.ALTER_REPLICA_LOG_DIRS.key: _on_cluster(ALTER),
    apis.DESCRIBE_LOG_DIRS.key: _on_cluster(DESCRIBE),
    apis.CREATE_PARTITIONS.key: Permission(items=(Need(ALTER, TOPIC),)),
    apis.DELETE_GROUPS.key: Permission(items=(Need(DELETE, GROUP),)),
    apis.ELECT_LEADERS.key: _on_cluster(ALTER),
    apis.ALTER_PARTITION_REASSIGNMENTS.key: _on_cluster(ALTER),
    apis.LIST_PARTITION_REASSIGNMENTS.key: _on_cluster(DESCRIBE),
    apis.OFFSET_DELETE.key: Permission((_DELETE_GROUP,), (_READ_TOPIC,)),
    apis.DESCRIBE_CLIENT_QUOTAS.key: _on_cluster(DESCRIBE_CONFIGS),
    apis.ALTER_CLIENT_QUOTAS.key: _on_cluster(ALTER_CONFIGS),
    apis.DESCRIBE_USER_SCRAM_CREDENTIALS.key: _on_cluster(DESCRIBE),
    apis.ALTER_USER_SCRAM_CREDENTIALS.key: _on_cluster(ALTER),
    apis.DESCRIBE_QUORUM.key: _on_cluster(DESCRIBE),
    # Everybody may know the brokers; the operations on the cluster are 0 without DESCRIBE.
    apis.DESCRIBE_CLUSTER.key: Permission(),
    apis.DESCRIBE_PRODUCERS.key: Permission(items=(_READ_TOPIC,), for_brokers=True),
    apis.UNREGISTER_BROKER.key: _on_cluster(ALTER),
    apis.DESCRIBE_TRANSACTIONS.key: Permission(items=(Need(DESCRIBE, TRANSACTIONAL_ID), _DESCRIBE_TOPIC)),
    apis.LIST_TRANSACTIONS.key: Permission(items=(Need(DESCRIBE, TRANSACTIONAL_ID),)),
    apis.CONSUMER_GROUP_HEARTBEAT.key: Permission((_READ_GROUP,), (_DESCRIBE_TOPIC,)),
    apis.CONSUMER_GROUP_DESCRIBE.key: Permission(items=(_DESCRIBE_GROUP, _DESCRIBE_TOPIC)),
    apis.LIST_CONFIG_RESOURCES.key: _on_cluster(DESCRIBE_CONFIGS),
    apis.DESCRIBE_TOPIC_PARTITIONS.key: Permission(items=(_DESCRIBE_TOPIC,)),
    apis.SHARE_GROUP_HEARTBEAT.key: Permission((_READ_GROUP,), (_DESCRIBE_TOPIC,)),
    apis.SHARE_GROUP_DESCRIBE.key: Permission(items=(_DESCRIBE_GROUP, _DESCRIBE_TOPIC)),
    apis.SHARE_FETCH.key: Permission((_READ_GROUP,), (_READ_TOPIC,)),
    apis.SHARE_ACKNOWLEDGE.key: Permission((_READ_GROUP,), (_READ_TOPIC,)),
    apis.INITIALIZE_SHARE_GROUP_STATE.key: _on_cluster(CLUSTER_ACTION),
    apis.READ_SHARE_GROUP_STATE.key: _on_cluster(CLUSTER_ACTION),
    apis.WRITE_SHARE_GROUP_STATE.key: _on_cluster(CLUSTER_ACTION),
    apis.DELETE_SHARE_GROUP_STATE.key: _on_cluster(CLUSTER_ACTION),
    apis.READ_SHARE_GROUP_STATE_SUMMARY.key: _on_cluster(CLUSTER_ACTION),
    apis.DESCRIBE_SHARE_GROUP_OFFSETS.key: Permission(items=(_DESCRIBE_GROUP, _DESCRIBE_TOPIC)),
    apis.ALTER_SHARE_GROUP_OFFSETS.key: Permission((_READ_GROUP,), (_READ_TOPIC,)),
    apis.DELETE_SHARE_GROUP_OFFSETS.key: Permission((_DELETE_GROUP,), (_READ_TOPIC,)),
    # By command: COMMAND_NEEDS.
    apis.SKEP_COMMAND.key: Permission(),
}

COMMAND_NEEDS: Mapping[str, tuple[Need, ...]] = {
    "alter_plain_user": (Need(ALTER, CLUSTER),),
    "check_access": (Need(DESCRIBE, CLUSTER),),
    "commands": (),
    "delay": (Need(READ, GROUP, "group"), Need(READ, TOPIC, "topic")),
    "deliveries": (Need(DESCRIBE, GROUP, "group"), Need(DESCRIBE, TOPIC, "topic")),
    "end_members": (Need(CLUSTER_ACTION, CLUSTER),),
    "plain_users": (Need(DESCRIBE, CLUSTER),),
    "renew": (Need(READ, GROUP, "group"), Need(READ, TOPIC, "topic")),
    "reopen": (Need(READ, GROUP, "group"), Need(READ, TOPIC, "topic")),
    "topic_needs": (Need(CLUSTER_ACTION, CLUSTER),),
}
"""What the commands of SkepCommand need. The fields are their arguments."""

_ITEM_OPERATIONS: Mapping[tuple[int, int], Operation] = MappingProxyType(
    {(key, int(need.resource)): need.operation for key, row in PERMISSIONS.items() for need in row.items}
)


_MISSING = Permission()
_WHOLE = {key: row if row.request or row.check is not None else None for key, row in PERMISSIONS.items()}
"""The rows of requests that need something as a whole. None for the others, such as Produce."""


def check_request(request: AnyRequest) -> None:
    """Raises KafkaError if the client may not send the request, whatever it names besides.

    Called by the dispatcher for clients whose rights are limited.
    """
    row = _WHOLE.get(request.api.key, _MISSING)
    if row is None:
        return
    if row is _MISSING:
        raise KafkaError(ErrorCode.cluster_authorization_failed, f"nobody is authorized for {request.api.name}")
    for operation, resource, field in row.request:
        name = CLUSTER_NAME if field is None else operator.attrgetter(field)(request.body) or ""
        check_named(request, operation, resource, name)
    if row.check is not None:
        row.check(request)


def check_named(request: AnyRequest, operation: Operation, resource: ResourceType, name: str) -> None:
    """Raises KafkaError unless the client may do this."""
    if not request.access.asked(request, operation, resource, name):
        raise refusal(resource)


def check_held_target(request: AnyRequest, target: str | None) -> None:
    """Raises KafkaError unless the client may write to the target of a held topic that it makes or changes.

    The broker releases held records with rights of its own. Without this, whoever may write to any topic of their own
    could write to every other one.
    """
    if target and request.access.is_limited:
        check_named(request, WRITE, TOPIC, target)


def check_command(request: AnyRequest, command: str, arguments: Mapping[str, Any]) -> None:
    """Raises KafkaError unless the client may send a command with these arguments."""
    if not request.access.is_limited:
        return
    for operation, resource, field in COMMAND_NEEDS[command]:
        check_named(request, operation, resource, CLUSTER_NAME if field is None else arguments[field])


def allowed(request: AnyRequest, resource: ResourceType, name: str) -> bool:
    """Returns whether the client may use an item of the request as its API does."""
    access = request.access
    if not access.is_limited:
        return True
    if PERMISSIONS[request.api.key].for_brokers and access.really_allows(CLUSTER_ACTION, CLUSTER, CLUSTER_NAME):
        return True
    return access.asked(request, _ITEM_OPERATIONS[request.api.key, resource], resource, name)


def check_item(request: AnyRequest, resource: ResourceType, name: str) -> None:
    """Raises KafkaError unless ``allowed``."""
    if not allowed(request, resource, name):
        raise refusal(resource)


def is_visible(request: AnyRequest, resource: ResourceType, name: str) -> bool:
    """Returns whether a list may have this name, which the client did not name."""
    access = request.access
    return not access.is_limited or access.allows(_ITEM_OPERATIONS[request.api.key, resource], resource, name)


def visible(
    request: AnyRequest, resource: ResourceType, entries: Sequence[dict[str, Any]], field: str
) -> Work[Sequence[dict[str, Any]]]:
    """Returns the entries of a list that the client may see; ``field`` has their name."""
    if not request.access.is_limited:
        return entries
    shown = []
    for entry in entries:
        if is_visible(request, resource, entry[field]):
            shown.append(entry)
        yield
    return shown


def may_create_topic(request: AnyRequest, name: str) -> bool:
    access = request.access
    if not access.is_limited or access.really_allows(CREATE, CLUSTER, CLUSTER_NAME):
        return access.asked(request, CREATE, CLUSTER, CLUSTER_NAME)
    return access.asked(request, CREATE, TOPIC, name)
