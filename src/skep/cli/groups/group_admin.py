"""Admin requests about consumer groups: list, describe and delete groups; read, set and delete their offsets.

All of them use confluent-kafka's AdminClient, except OffsetDelete, which it does not have.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import (
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    ConsumerGroupType,
    KafkaError,
    KafkaException,
)
from confluent_kafka import TopicPartition as ClientPartition

from skep.base.ids import TopicPartition
from skep.base.unknown_names import did_you_mean
from skep.cli.connection import Cluster
from skep.cli.failures import CommandError, UsageError, reason
from skep.cli.partition_selection import selected_partitions

STATES = {
    "PreparingRebalance": ConsumerGroupState.PREPARING_REBALANCING,
    "CompletingRebalance": ConsumerGroupState.COMPLETING_REBALANCING,
    "Stable": ConsumerGroupState.STABLE,
    "Dead": ConsumerGroupState.DEAD,
    "Empty": ConsumerGroupState.EMPTY,
    "Assigning": getattr(ConsumerGroupState, "ASSIGNING", None),
    "Reconciling": getattr(ConsumerGroupState, "RECONCILING", None),
}
"""Kafka's names of the states. The library has names of its own; older versions lack some of the states."""
TYPES = {"Classic": ConsumerGroupType.CLASSIC, "Consumer": ConsumerGroupType.CONSUMER}
INACTIVE = ("Empty", "Dead")
UNKNOWN = "Unknown"
NO_OFFSET = -1


@dataclass(frozen=True)
class GroupListing:
    group: str
    state: str
    type: str


@dataclass(frozen=True)
class MemberView:
    member_id: str
    client_id: str
    host: str
    instance_id: str | None
    assignment: list[TopicPartition]
    target: list[TopicPartition] | None = None


@dataclass(frozen=True)
class GroupView:
    group: str
    state: str
    type: str
    assignor: str
    coordinator: str
    coordinator_id: int
    members: list[MemberView] = field(default_factory=list)


@dataclass(frozen=True)
class Committed:
    offset: int
    leader_epoch: int | None = None
    metadata: str = ""


def list_groups(cluster: Cluster, states: Iterable[str] = (), types: Iterable[str] = ()) -> list[GroupListing]:
    """Returns the groups sorted by name. ``states`` and ``types`` are case-insensitive; without them, all groups."""
    cluster.metadata()
    filters: dict[str, Any] = {}
    if wanted := _named(STATES, states, "state"):
        filters["states"] = wanted
    if wanted := _named(TYPES, types, "type"):
        filters["types"] = wanted
    listed = cluster.admin.list_consumer_groups(request_timeout=cluster.request_timeout_s, **filters).result()
    for error in listed.errors:
        # A partial list would look complete.
        raise CommandError(f"cannot list groups: {reason(error)}")
    found = [
        GroupListing(row.group_id, _name(STATES, row.state), _name(TYPES, getattr(row, "type", None)))
        for row in listed.valid
    ]
    return sorted(found, key=lambda listing: listing.group)


def _named(table: Mapping[str, Any], names: Iterable[str], what: str) -> set[Any]:
    by_name = {name.lower(): value for name, value in table.items() if value is not None}
    chosen = set()
    for name in names:
        if name.strip().lower() not in by_name:
            known = ", ".join(key for key, value in table.items() if value is not None)
            raise UsageError(f"'{name}' is not a group {what}; the group {what}s are {known}")
        chosen.add(by_name[name.strip().lower()])
    return chosen


def _name(table: Mapping[str, Any], value: Any) -> str:
    return next((name for name, known in table.items() if known is not None and known == value), UNKNOWN)


def describe_groups(cluster: Cluster, names: Sequence[str]) -> list[GroupView]:
    """Returns the groups in the order of ``names``. Raises CommandError for a group that does not exist."""
    found = find_groups(cluster, names)
    for name in names:
        if found[name] is None:
            raise unknown_group(name, (listing.group for listing in list_groups(cluster)))
    return [view for name in names if (view := found[name]) is not None]


def find_groups(cluster: Cluster, names: Sequence[str]) -> dict[str, GroupView | None]:
    """Returns the groups by name; None for a group that does not exist."""
    if not names:
        return {}
    cluster.metadata()
    found: dict[str, GroupView | None] = {}
    futures = cluster.admin.describe_consumer_groups(list(names), request_timeout=cluster.request_timeout_s)
    for name, future in futures.items():
        try:
            view = _view(future.result())
        except KafkaException as error:
            if error.args[0].code() != KafkaError.GROUP_ID_NOT_FOUND:
                raise CommandError(f"cannot describe group '{name}': {reason(error)}") from None
            view = None
        # DescribeGroups up to version 5 reports a group that does not exist as Dead.
        found[name] = None if view is not None and view.state == "Dead" else view
    return found


def _view(described: Any) -> GroupView:
    node = described.coordinator
    return GroupView(
        described.group_id,
        _name(STATES, described.state),
        _name(TYPES, getattr(described, "type", None)),
        described.partition_assignor or "",
        f"{node.host}:{node.port}" if node is not None else "",
        node.id if node is not None else -1,
        [
            MemberView(
                member.member_id,
                member.client_id,
                member.host,
                member.group_instance_id or None,
                _places(member.assignment),
                None if getattr(member, "target_assignment", None) is None else _places(member.target_assignment),
            )
            for member in described.members
        ],
    )


def _places(assignment: Any) -> list[TopicPartition]:
    return sorted(TopicPartition(place.topic, place.partition) for place in assignment.topic_partitions)


def unknown_group(name: str, known: Iterable[str]) -> CommandError:
    return CommandError(f"there is no group '{name}'{did_you_mean(name, known)}")


def committed_offsets(cluster: Cluster, group: str) -> dict[TopicPartition, Committed]:
    """Returns all committed offsets of the group."""
    request = [ConsumerGroupTopicPartitions(group)]
    futures = cluster.admin.list_consumer_group_offsets(request, request_timeout=cluster.request_timeout_s)
    try:
        places = futures[group].result().topic_partitions
    except KafkaException as error:
        if error.args[0].code() == KafkaError.GROUP_ID_NOT_FOUND:
            return {}
        raise CommandError(f"cannot read the offsets of group '{group}': {reason(error)}") from None
    found = {}
    for place in places:
        if place.error is not None:
            raise CommandError(
                f"cannot read the offset of group '{group}' for {place.topic}-{place.partition}: {reason(place.error)}"
            )
        if place.offset > NO_OFFSET:
            epoch = place.leader_epoch if place.leader_epoch is not None and place.leader_epoch >= 0 else None
            found[TopicPartition(place.topic, place.partition)] = Committed(place.offset, epoch, place.metadata or "")
    return found


def commit_offsets(cluster: Cluster, group: str, offsets: Mapping[TopicPartition, int]) -> None:
    """Sets the committed offsets of the group. The broker refuses this while the group has members."""
    places = [ClientPartition(topic, partition, offset) for (topic, partition), offset in sorted(offsets.items())]
    request = [ConsumerGroupTopicPartitions(group, places)]
    futures = cluster.admin.alter_consumer_group_offsets(request, request_timeout=cluster.request_timeout_s)
    try:
        for place in futures[group].result().topic_partitions:
            if place.error is not None:
                raise CommandError(
                    f"cannot reset the offset of group '{group}' for {place.topic}-{place.partition}: "
                    f"{reason(place.error)}"
                )
    except KafkaException as error:
        raise CommandError(f"cannot reset the offsets of group '{group}': {reason(error)}") from None


def delete_groups(cluster: Cluster, names: Sequence[str]) -> dict[str, str | None]:
    """Deletes groups. Returns the error of each, or None for a group that was deleted."""
    cluster.metadata()
    errors: dict[str, str | None] = {}
    futures = cluster.admin.delete_consumer_groups(list(names), request_timeout=cluster.request_timeout_s)
    for name, future in futures.items():
        try:
            future.result()
            errors[name] = None
        except KafkaException as error:
            errors[name] = reason(error)
    return errors


def delete_offsets(cluster: Cluster, group: str, topics: Sequence[str]) -> dict[TopicPartition, str | None]:
    """Deletes committed offsets. Returns the error of each partition, or None for an offset that was deleted."""
    # Imported here because no other group command needs Skep's own client.
    from skep.base.errors import ErrorCode
    from skep.cli.skep_client import error_text, skep_client
    from skep.client.cluster_client import GROUP
    from skep.wire.apis import OFFSET_DELETE

    by_topic: dict[str, list[dict[str, int]]] = {}
    for topic, partition in selected_partitions(cluster, topics):
        by_topic.setdefault(topic, []).append({"partition_index": partition})
    body = {
        "group_id": group,
        "topics": [{"name": topic, "partitions": partitions} for topic, partitions in by_topic.items()],
    }
    with skep_client(cluster) as client:
        _, response = client.ask_coordinator(GROUP, group, OFFSET_DELETE, body, lambda response: response.error_code)
    if response.error_code is ErrorCode.group_id_not_found:
        raise unknown_group(group, (listing.group for listing in list_groups(cluster)))
    if response.error_code is not ErrorCode.none:
        raise CommandError(f"cannot delete offsets of group '{group}': {error_text(response.error_code)}")
    return {
        TopicPartition(topic.name, row.partition_index): None
        if row.error_code is ErrorCode.none
        else error_text(row.error_code)
        for topic in response.topics
        for row in topic.partitions
    }
