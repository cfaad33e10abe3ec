"""Admin requests about share groups (KIP-932), which confluent-kafka's AdminClient does not have.

``group_admin`` imports this when it meets a share group, because Skep's own client takes a while to import.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from skep.base.errors import ErrorCode
from skep.base.ids import TopicPartition
from skep.cli.connection import Cluster
from skep.cli.failures import CommandError
from skep.cli.groups.group_views import SHARE, GroupListing, GroupView, MemberView
from skep.cli.skep_client import error_text, skep_client
from skep.client.cluster_client import GROUP, ClusterClient
from skep.client.errors import Unsupported
from skep.wire import apis

UNKNOWN = -1


@dataclass(frozen=True)
class ShareOffset:
    """Where a share group starts in a partition, and how many records from there on are not finished. None: unknown."""

    start: int | None
    lag: int | None
    leader_epoch: int


def can_have_share_groups(cluster: Cluster) -> bool:
    """Whether the cluster can be asked: Skep's own client connects without TLS only."""
    return cluster.properties.get("security.protocol", "plaintext").lower() == "plaintext"


def list_share_groups(cluster: Cluster, states: Iterable[str] = ()) -> list[GroupListing]:
    """Returns the share groups in one of ``states``, sorted by name; without states, all of them."""
    if not can_have_share_groups(cluster):
        return []
    body = {"states_filter": list(states), "types_filter": [SHARE]}
    found = []
    with skep_client(cluster) as client:
        for node in client.nodes():
            response = client.ask_node(node, apis.LIST_GROUPS, body)
            if response.error_code is not ErrorCode.none:
                # A partial list would look complete.
                raise CommandError(f"cannot list groups: {error_text(response.error_code)}")
            # A broker that does not know the filter by type returns all groups.
            found += [
                GroupListing(row.group_id, row.group_state, SHARE)
                for row in response.groups
                if getattr(row, "group_type", "").lower() == SHARE.lower()
            ]
    return sorted(found, key=lambda listing: listing.group)


def find_share_groups(cluster: Cluster, names: Sequence[str]) -> dict[str, GroupView | None]:
    """Returns the groups by name; None for a group that does not exist or is of another type."""
    found: dict[str, GroupView | None] = dict.fromkeys(names)
    if not can_have_share_groups(cluster):
        return found
    with skep_client(cluster) as client:
        for name in names:
            body = {"group_ids": [name], "include_authorized_operations": False}
            try:
                node, response = client.ask_coordinator(
                    GROUP, name, apis.SHARE_GROUP_DESCRIBE, body, lambda response: response.groups[0].error_code
                )
            except Unsupported:
                break  # a Kafka without share groups
            [group] = response.groups
            if group.error_code not in (ErrorCode.none, ErrorCode.group_id_not_found):
                raise CommandError(f"cannot describe group '{name}': {error_text(group.error_code)}")
            is_found = group.error_code is ErrorCode.none
            found[name] = _view(group, f"{node.host}:{node.port}", node.node_id) if is_found else None
    return found


def _view(group: Any, coordinator: str, coordinator_id: int) -> GroupView:
    return GroupView(
        group.group_id,
        group.group_state,
        SHARE,
        group.assignor_name,
        coordinator,
        coordinator_id,
        [
            MemberView(
                member.member_id,
                member.client_id,
                member.client_host,
                None,
                sorted(
                    TopicPartition(topic.topic_name, partition)
                    for topic in member.assignment.topic_partitions
                    for partition in topic.partitions
                ),
                epoch=member.member_epoch,
            )
            for member in group.members
        ],
        group.group_epoch,
        group.assignment_epoch,
    )


def share_offsets(cluster: Cluster, group: str) -> dict[TopicPartition, ShareOffset]:
    """Returns the partitions that the group has state of; none if there is no such share group."""
    with skep_client(cluster) as client:
        return offsets_by(client, group)


def offsets_by(client: ClusterClient, group: str) -> dict[TopicPartition, ShareOffset]:
    """``share_offsets`` for a caller that has a client."""
    body = {"groups": [{"group_id": group, "topics": None}]}
    _, response = client.ask_coordinator(
        GROUP, group, apis.DESCRIBE_SHARE_GROUP_OFFSETS, body, lambda response: response.groups[0].error_code
    )
    [described] = response.groups
    if described.error_code is not ErrorCode.none:
        raise CommandError(f"cannot read the offsets of group '{group}': {error_text(described.error_code)}")
    found = {}
    for topic in described.topics:
        for row in topic.partitions:
            if row.error_code is not ErrorCode.none:
                where = f"{topic.topic_name}-{row.partition_index}"
                raise CommandError(
                    f"cannot read the offset of group '{group}' for {where}: {error_text(row.error_code)}"
                )
            found[TopicPartition(topic.topic_name, row.partition_index)] = ShareOffset(
                None if row.start_offset == UNKNOWN else row.start_offset,
                None if row.lag == UNKNOWN else row.lag,
                row.leader_epoch,
            )
    return found


def set_start_offsets(cluster: Cluster, group: str, offsets: Mapping[TopicPartition, int]) -> None:
    """Sets the start offsets of the group. The broker refuses this while the group has members."""
    by_topic: dict[str, list[dict[str, int]]] = {}
    for (topic, partition), offset in sorted(offsets.items()):
        by_topic.setdefault(topic, []).append({"partition_index": partition, "start_offset": offset})
    topics = [{"topic_name": topic, "partitions": partitions} for topic, partitions in by_topic.items()]
    with skep_client(cluster) as client:
        _, response = client.ask_coordinator(
            GROUP,
            group,
            apis.ALTER_SHARE_GROUP_OFFSETS,
            {"group_id": group, "topics": topics},
            lambda response: response.error_code,
        )
    if response.error_code is not ErrorCode.none:
        raise CommandError(f"cannot reset the offsets of group '{group}': {error_text(response.error_code)}")
    for topic in response.responses:
        for row in topic.partitions:
            if row.error_code is not ErrorCode.none:
                raise CommandError(
                    f"cannot reset the offset of group '{group}' for {topic.topic_name}-{row.partition_index}: "
                    f"{error_text(row.error_code)}"
                )


def delete_share_offsets(cluster: Cluster, group: str, topics: Sequence[str]) -> dict[str, str | None] | None:
    """Deletes the state of topics. Returns the error of each, or None for one that was deleted; None if there is no
    such share group."""
    body = {"group_id": group, "topics": [{"topic_name": topic} for topic in topics]}
    with skep_client(cluster) as client:
        _, response = client.ask_coordinator(
            GROUP, group, apis.DELETE_SHARE_GROUP_OFFSETS, body, lambda response: response.error_code
        )
    if response.error_code is ErrorCode.group_id_not_found:
        return None
    if response.error_code is not ErrorCode.none:
        raise CommandError(f"cannot delete offsets of group '{group}': {error_text(response.error_code)}")
    return {
        row.topic_name: None if row.error_code is ErrorCode.none else row.error_message or error_text(row.error_code)
        for row in response.responses
    }
