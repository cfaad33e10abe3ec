"""What ConsumerGroupDescribe tells of a consumer group."""

import uuid
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from skep.base.errors import ErrorCode
from skep.coordination.groups.consumer_group import ConsumerGroup
from skep.coordination.groups.consumer_member import ConsumerMember, shown
from skep.coordination.groups.consumer_subscriptions import NOTHING_ASSIGNED
from skep.coordination.shard import Outcome
from skep.metadata.image import ClusterImage

if TYPE_CHECKING:
    from skep.coordination.groups.shard import GroupShard

_CLASSIC, _CONSUMER = 0, 1


def describe(shard: "GroupShard", group_id: str) -> Outcome:
    """The response is one group of the answer."""
    group = shard.groups.get(group_id)
    if not isinstance(group, ConsumerGroup):
        problem = "not found" if group is None else "is not a consumer group"
        return Outcome(
            {
                "group_id": group_id,
                "error_code": ErrorCode.group_id_not_found,
                "error_message": f"Group {group_id} {problem}.",
            }
        )
    image = shard.image()
    return Outcome(
        {
            "group_id": group_id,
            "group_state": group.state_name,
            "group_epoch": group.group_epoch,
            "assignment_epoch": group.assignment_epoch,
            "assignor_name": group.preferred_assignor(shard.settings().group_consumer_assignors[0]),
            "members": [
                _described(member, group.targets.get(member.member_id, NOTHING_ASSIGNED), image)
                for member in group.members.values()
            ],
        }
    )


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
        "assignment": _named(member.assigned, image),
        "target_assignment": _named(target, image),
        "member_type": _CLASSIC if member.is_classic else _CONSUMER,
    }


def _named(partitions: Mapping[uuid.UUID, Iterable[int]], image: ClusterImage) -> dict[str, Any]:
    """Topics that have been deleted have no name any more and are left out."""
    return {
        "topic_partitions": [
            {**entry, "topic_name": image.topics_by_id[entry["topic_id"]].name}
            for entry in shown(partitions)
            if entry["topic_id"] in image.topics_by_id
        ]
    }
