"""What ShareGroupDescribe returns of a share group."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from skep.base.loop.slicer import Work
from skep.coordination.groups.consumer.consumer_description import with_names
from skep.coordination.groups.group_table import GroupTable
from skep.coordination.groups.share.share_member import ShareMember
from skep.coordination.groups.share.share_membership import share_group
from skep.coordination.shard import Outcome
from skep.metadata.cluster_image import ClusterImage


class ShareGroupSnapshot(NamedTuple):
    """A group at one moment. Members are immutable, so it is enough to copy the collection."""

    group_id: str
    group_state: str
    group_epoch: int
    assignment_epoch: int
    assignor_name: str
    members: Sequence[ShareMember]
    image: ClusterImage


def describe(table: GroupTable, group_id: str) -> Outcome:
    """The response is a ShareGroupSnapshot. Raises GROUP_ID_NOT_FOUND, also for a group of another kind."""
    group = share_group(table, group_id)
    return Outcome(
        ShareGroupSnapshot(
            group_id,
            group.state_name,
            group.group_epoch,
            group.assignment_epoch,
            table.share_config.assignors[0],
            list(group.members.values()),
            table.image(),
        )
    )


def described(group: ShareGroupSnapshot) -> Work[dict[str, Any]]:
    """Returns one group of the response's body."""
    members = []
    for member in group.members:
        members.append(
            {
                "member_id": member.member_id,
                "rack_id": member.rack_id,
                "member_epoch": member.member_epoch,
                "client_id": member.client_id,
                "client_host": member.client_host,
                "subscribed_topic_names": sorted(member.topic_names),
                "assignment": with_names(member.assigned, group.image),
            }
        )
        yield
    return {
        "group_id": group.group_id,
        "group_state": group.group_state,
        "group_epoch": group.group_epoch,
        "assignment_epoch": group.assignment_epoch,
        "assignor_name": group.assignor_name,
        "members": members,
    }
