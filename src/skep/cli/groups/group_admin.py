"""Admin requests about groups: list, describe and delete groups; read, set and delete their offsets.

All of them use confluent-kafka's AdminClient, except OffsetDelete and the requests about share groups, which it does
not have. Where a function meets a group that is no consumer group, it asks for a share group (``share_group_admin``).
The offsets of a share group are those where it starts.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
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
from skep.cli.groups.group_views import SHARE, GroupListing, GroupView, MemberView
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
TYPES = {"Classic": ConsumerGroupType.CLASSIC, "Consumer": ConsumerGroupType.CONSUMER, SHARE: SHARE}
INACTIVE = ("Empty", "Dead")
UNKNOWN = "Unknown"
NO_OFFSET = -1


@dataclass(frozen=True)
class Committed:
    offset: int
    leader_epoch: int | None = None
    metadata: str = ""


def list_groups(cluster: Cluster, states: Iterable[str] = (), types: Iterable[str] = ()) -> list[GroupListing]:
    """Returns the groups sorted by name. ``states`` and ``types`` are case-insensitive; without them, all groups."""
    cluster.metadata()
    states = list(states)
    filters: dict[str, Any] = {}
    if wanted := _named(STATES, states, "state"):
        filters["states"] = wanted
    found = []
    types_wanted = _named(TYPES, types, "type")
    if not types_wanted or TYPES[SHARE] in types_wanted:
        found += _share_groups(cluster, states)
    if not types_wanted or types_wanted != {TYPES[SHARE]}:
        if types_wanted:
            filters["types"] = types_wanted - {TYPES[SHARE]}
        found += _other_groups(cluster, filters)
    return sorted(found, key=lambda listing: listing.group)


def _other_groups(cluster: Cluster, filters: Mapping[str, Any]) -> list[GroupListing]:
    """Returns the groups that the library lists, which are those of consumers."""
    listed = cluster.admin.list_consumer_groups(request_timeout=cluster.request_timeout_s, **filters).result()
    for error in listed.errors:
        # A partial list would look complete.
        raise CommandError(f"cannot list groups: {reason(error)}")
    return [
        GroupListing(row.group_id, _name(STATES, row.state), _name(TYPES, getattr(row, "type", None)))
        for row in listed.valid
    ]


def _share_groups(cluster: Cluster, states: Iterable[str]) -> list[GroupListing]:
    from skep.cli.groups.share_group_admin import list_share_groups

    return list_share_groups(cluster, states)


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
    if missing := [name for name, view in found.items() if view is None]:
        from skep.cli.groups.share_group_admin import find_share_groups

        found |= find_share_groups(cluster, missing)
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
    """Returns all committed offsets of the group, or the start offsets of a share group."""
    request = [ConsumerGroupTopicPartitions(group)]
    futures = cluster.admin.list_consumer_group_offsets(request, request_timeout=cluster.request_timeout_s)
    try:
        places = futures[group].result().topic_partitions
    except KafkaException as error:
        if error.args[0].code() == KafkaError.GROUP_ID_NOT_FOUND:
            return _start_offsets(cluster, group)
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


def _start_offsets(cluster: Cluster, group: str) -> dict[TopicPartition, Committed]:
    from skep.cli.groups.share_group_admin import share_offsets

    found = share_offsets(cluster, group)
    return {place: Committed(at.start, at.leader_epoch) for place, at in found.items() if at.start is not None}


def commit_offsets(cluster: Cluster, group: str, offsets: Mapping[TopicPartition, int]) -> None:
    """Sets the committed offsets of the group, or the start offsets of a share group.

    The broker refuses this while the group has members.
    """
    places = [ClientPartition(topic, partition, offset) for (topic, partition), offset in sorted(offsets.items())]
    request = [ConsumerGroupTopicPartitions(group, places)]
    futures = cluster.admin.alter_consumer_group_offsets(request, request_timeout=cluster.request_timeout_s)
    try:
        for place in futures[group].result().topic_partitions:
            if place.error is not None and place.error.code() == KafkaError.GROUP_ID_NOT_FOUND:
                from skep.cli.groups.share_group_admin import set_start_offsets

                set_start_offsets(cluster, group, offsets)
                return
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
    """Deletes committed offsets. Returns the error of each partition, or None for an offset that was deleted.

    Those of a share group are deleted by topic.
    """
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
        from skep.cli.groups.share_group_admin import delete_share_offsets, find_share_groups

        if any(":" in topic for topic in topics) and find_share_groups(cluster, [group])[group] is not None:
            raise UsageError(f"group '{group}' is a share group; its offsets are deleted by topic, without partitions")
        errors = delete_share_offsets(cluster, group, list(by_topic))
        if errors is not None:
            return {
                TopicPartition(topic, row["partition_index"]): errors[topic]
                for topic, rows in by_topic.items()
                for row in rows
            }
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
