"""Consumer groups as the commands see them, through the AdminClient: listed, described, their offsets read and set."""

import difflib
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
from skep.cli.connection import Cluster
from skep.cli.failures import CommandError, UsageError, reason

STATES = {
    "PreparingRebalance": ConsumerGroupState.PREPARING_REBALANCING,
    "CompletingRebalance": ConsumerGroupState.COMPLETING_REBALANCING,
    "Stable": ConsumerGroupState.STABLE,
    "Dead": ConsumerGroupState.DEAD,
    "Empty": ConsumerGroupState.EMPTY,
    "Assigning": getattr(ConsumerGroupState, "ASSIGNING", None),
    "Reconciling": getattr(ConsumerGroupState, "RECONCILING", None),
}
"""Kafka's names; the library has its own, and older versions of it not all of them."""
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
    """The groups by name; of the states and types named, in any case of letters, or all."""
    cluster.metadata()
    filters: dict[str, Any] = {}
    if wanted := _named(STATES, states, "state"):
        filters["states"] = wanted
    if wanted := _named(TYPES, types, "type"):
        filters["types"] = wanted
    answer = cluster.admin.list_consumer_groups(request_timeout=cluster.request_timeout_s, **filters).result()
    for error in answer.errors:
        # Half a list would look like all there is.
        raise CommandError(f"the groups cannot be listed: {reason(error)}")
    found = [
        GroupListing(listed.group_id, _name(STATES, listed.state), _name(TYPES, getattr(listed, "type", None)))
        for listed in answer.valid
    ]
    return sorted(found, key=lambda listed: listed.group)


def _named(table: Mapping[str, Any], names: Iterable[str], what: str) -> set[Any]:
    by_name = {name.lower(): value for name, value in table.items() if value is not None}
    chosen = set()
    for name in names:
        if name.strip().lower() not in by_name:
            known = ", ".join(key for key, value in table.items() if value is not None)
            raise UsageError(f"'{name}' is no {what} of a group; those are {known}")
        chosen.add(by_name[name.strip().lower()])
    return chosen


def _name(table: Mapping[str, Any], value: Any) -> str:
    return next((name for name, known in table.items() if known is not None and known == value), UNKNOWN)


def describe_groups(cluster: Cluster, names: Sequence[str]) -> list[GroupView]:
    """The groups in the order of ``names``; one that is not there is a CommandError that names it."""
    found = find_groups(cluster, names)
    for name in names:
        if found[name] is None:
            raise unknown_group(name, (listed.group for listed in list_groups(cluster)))
    return [view for name in names if (view := found[name]) is not None]


def find_groups(cluster: Cluster, names: Sequence[str]) -> dict[str, GroupView | None]:
    """The groups by name; None for one that is not there."""
    if not names:
        return {}
    cluster.metadata()
    found: dict[str, GroupView | None] = {}
    answers = cluster.admin.describe_consumer_groups(list(names), request_timeout=cluster.request_timeout_s)
    for name, answer in answers.items():
        try:
            view = _view(answer.result())
        except KafkaException as error:
            if error.args[0].code() != KafkaError.GROUP_ID_NOT_FOUND:
                raise CommandError(f"group '{name}' cannot be described: {reason(error)}") from None
            view = None
        # Up to version 5 of DescribeGroups a group that is not there is answered as a dead one.
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
    close = difflib.get_close_matches(name, list(known), n=3)
    meant = f"; did you mean {' or '.join(close)}?" if close else ""
    return CommandError(f"there is no group '{name}'{meant}")


def committed_offsets(cluster: Cluster, group: str) -> dict[TopicPartition, Committed]:
    """All that the group has committed."""
    request = [ConsumerGroupTopicPartitions(group)]
    answers = cluster.admin.list_consumer_group_offsets(request, request_timeout=cluster.request_timeout_s)
    try:
        places = answers[group].result().topic_partitions
    except KafkaException as error:
        if error.args[0].code() == KafkaError.GROUP_ID_NOT_FOUND:
            return {}
        raise CommandError(f"the offsets of group '{group}' cannot be read: {reason(error)}") from None
    found = {}
    for place in places:
        if place.error is not None:
            raise CommandError(f"the offset of {place.topic}-{place.partition}: {reason(place.error)}")
        if place.offset > NO_OFFSET:
            epoch = place.leader_epoch if place.leader_epoch is not None and place.leader_epoch >= 0 else None
            found[TopicPartition(place.topic, place.partition)] = Committed(place.offset, epoch, place.metadata or "")
    return found


def commit_offsets(cluster: Cluster, group: str, offsets: Mapping[TopicPartition, int]) -> None:
    """Sets what the group has committed. The broker refuses it while the group has members."""
    places = [ClientPartition(topic, partition, offset) for (topic, partition), offset in sorted(offsets.items())]
    request = [ConsumerGroupTopicPartitions(group, places)]
    answers = cluster.admin.alter_consumer_group_offsets(request, request_timeout=cluster.request_timeout_s)
    try:
        for place in answers[group].result().topic_partitions:
            if place.error is not None:
                raise CommandError(f"{place.topic}-{place.partition} keeps its offset: {reason(place.error)}")
    except KafkaException as error:
        raise CommandError(f"group '{group}' keeps its offsets: {reason(error)}") from None


def delete_groups(cluster: Cluster, names: Sequence[str]) -> dict[str, str | None]:
    """By group why it is still there, or None when it is gone."""
    cluster.metadata()
    ends: dict[str, str | None] = {}
    answers = cluster.admin.delete_consumer_groups(list(names), request_timeout=cluster.request_timeout_s)
    for name, answer in answers.items():
        try:
            answer.result()
            ends[name] = None
        except KafkaException as error:
            ends[name] = reason(error)
    return ends
