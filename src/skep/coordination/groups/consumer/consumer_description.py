"""What ConsumerGroupDescribe returns of a consumer group."""

import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from skep.base.errors import ErrorCode, KafkaError
from skep.base.loop.slicer import Work
from skep.coordination.groups.assignors.spec import Partitions
from skep.coordination.groups.consumer.consumer_group import ConsumerGroup
from skep.coordination.groups.consumer.consumer_member import ConsumerMember, shown
from skep.coordination.groups.consumer.consumer_subscriptions import NOTHING_ASSIGNED
from skep.coordination.groups.group_table import GroupTable
from skep.coordination.shard import Outcome
from skep.metadata.cluster_image import ClusterImage

_CLASSIC, _CONSUMER = 0, 1


class GroupSnapshot(NamedTuple):
    """A group at one moment. Members and targets are immutable, so it is enough to copy the collections."""

    group_id: str
    group_state: str
    group_epoch: int
    assignment_epoch: int
    assignor_name: str
    members: Sequence[ConsumerMember]
    targets: Mapping[str, Partitions]
    image: ClusterImage


def describe(table: GroupTable, group_id: str) -> Outcome:
    """The response is a GroupSnapshot. Raises GROUP_ID_NOT_FOUND, also for a classic group."""
    group = table.groups.get(group_id)
    if not isinstance(group, ConsumerGroup):
        problem = "not found" if group is None else "is not a consumer group"
        raise KafkaError(ErrorCode.group_id_not_found, f"Group {group_id} {problem}.")
    return Outcome(
        GroupSnapshot(
            group_id,
            group.state_name,
            group.group_epoch,
            group.assignment_epoch,
            group.preferred_assignor(table.config.group_consumer_assignors[0]),
            list(group.members.values()),
            group.targets.copy(),
            table.image(),
        )
    )


def described(group: GroupSnapshot) -> Work[dict[str, Any]]:
    """Returns one group of the response's body."""
    members = []
    for member in group.members:
        target = group.targets.get(member.member_id, NOTHING_ASSIGNED)
        members.append(_described(member, target, group.image))
        yield
    return {
        "group_id": group.group_id,
        "group_state": group.group_state,
        "group_epoch": group.group_epoch,
        "assignment_epoch": group.assignment_epoch,
        "assignor_name": group.assignor_name,
        "members": members,
    }


def _described(member: ConsumerMember, target: Mapping[uuid.UUID, frozenset[int]], image: ClusterImage) -> Any:
    return {
        "member_id": member.member_id,
        "instance_id": member.instance_id,
        "rack_id": member.rack_id,
        "member_epoch": member.member_epoch,
        "client_id": member.client_id,
        "client_host": member.client_host,
        "subscribed_topic_names": sorted(member.topic_names),
        "subscribed_topic_regex": member.topic_regex or None,
        "assignment": with_names(member.assigned, image),
        "target_assignment": with_names(target, image),
        "member_type": _CLASSIC if member.is_classic else _CONSUMER,
    }


def with_names(partitions: Mapping[uuid.UUID, Iterable[int]], image: ClusterImage) -> dict[str, Any]:
    """Returns partitions with topic names. Deleted topics have no name and are left out."""
    return {
        "topic_partitions": [
            {**entry, "topic_name": image.topics_by_id[entry["topic_id"]].name}
            for entry in shown(partitions)
            if entry["topic_id"] in image.topics_by_id
        ]
    }
