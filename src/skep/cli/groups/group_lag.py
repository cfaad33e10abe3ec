"""The lag of a group: the distance between the committed offset and the log end offset of each partition.

A share group has finished some of the records behind its start offset. The broker counts the others.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from skep.base.ids import TopicPartition
from skep.cli.connection import Cluster
from skep.cli.groups.group_admin import Committed, committed_offsets
from skep.cli.groups.group_views import SHARE, GroupView, MemberView
from skep.cli.log_offsets import latest_offsets, with_leader


@dataclass(frozen=True)
class LagRow:
    """One partition with a committed offset, or assigned to a member of the group, or both.

    ``current`` is the start offset of a share group, ``unfinished`` its lag, and ``in_flight`` how many records its
    members hold, which only Skep's brokers know. It has no ``member``: a partition may have several.
    """

    where: TopicPartition
    current: int | None
    log_end: int | None
    """None when the partition does not exist any more or has no leader."""
    leader_epoch: int | None = None
    member: MemberView | None = None
    unfinished: int | None = None
    in_flight: int | None = None

    @property
    def lag(self) -> int | None:
        if self.unfinished is not None:
            return self.unfinished
        return None if self.current is None or self.log_end is None else self.log_end - self.current


def lag_rows(cluster: Cluster, view: GroupView) -> list[LagRow]:
    """Returns the partitions assigned to members, then the unassigned ones, each part in order."""
    if view.type == SHARE:
        return _share_rows(cluster, view.group)
    committed = committed_offsets(cluster, view.group)
    owners = {place: member for member in view.members for place in member.assignment}
    ends = latest_offsets(cluster, with_leader(cluster, committed.keys() | owners.keys()))
    return joined_rows(committed, owners, ends)


def _share_rows(cluster: Cluster, group: str) -> list[LagRow]:
    from skep.cli.groups.share_deliveries import find_deliveries
    from skep.cli.groups.share_group_admin import share_offsets
    from skep.cli.skep_client import skep_client

    offsets = share_offsets(cluster, group)
    ends = latest_offsets(cluster, with_leader(cluster, offsets))
    with skep_client(cluster) as client:
        deliveries = find_deliveries(client, group, offsets)
    held = {place: found.in_flight for place, found in deliveries.items()}
    return [
        LagRow(place, at.start, ends.get(place), at.leader_epoch, unfinished=at.lag, in_flight=held.get(place))
        for place, at in sorted(offsets.items())
    ]


def joined_rows(
    committed: Mapping[TopicPartition, Committed],
    owners: Mapping[TopicPartition, MemberView],
    ends: Mapping[TopicPartition, int],
) -> list[LagRow]:
    rows = []
    for place in sorted(committed.keys() | owners.keys(), key=lambda place: (place not in owners, place)):
        offset = committed.get(place)
        rows.append(
            LagRow(
                place,
                None if offset is None else offset.offset,
                ends.get(place),
                None if offset is None else offset.leader_epoch,
                owners.get(place),
            )
        )
    return rows


def total_lag(rows: list[LagRow]) -> int:
    """Returns the sum over the partitions whose lag is known; one without a committed offset has no lag."""
    return sum(max(0, row.lag) for row in rows if row.lag is not None)
