"""What DescribeGroups returns of a classic group."""

from typing import Any

from skep.base.errors import ErrorCode
from skep.coordination.groups.classic.classic_group import ClassicGroup
from skep.coordination.groups.classic.classic_state import DEAD, EMPTY, STABLE
from skep.coordination.groups.group_table import GroupTable
from skep.coordination.shard import Outcome

HAS_GROUP_ID_NOT_FOUND = 6
"""Before, a group that does not exist is Dead, without an error."""


def describe(table: GroupTable, group_id: str, version: int) -> Outcome:
    """The response is one entry of DescribeGroups' body. For this API a consumer group does not exist."""
    group = table.groups.get(group_id)
    if isinstance(group, ClassicGroup):
        return Outcome(_described(group))
    if group is None and table.offsets.has_offsets(group_id):
        return Outcome({"group_id": group_id, "group_state": EMPTY.value})
    return Outcome(_not_found(group_id, group.type_name if group is not None else None, version))


def _not_found(group_id: str, type_name: str | None, version: int) -> dict[str, Any]:
    entry: dict[str, Any] = {"group_id": group_id, "group_state": DEAD.value}
    if version >= HAS_GROUP_ID_NOT_FOUND:
        entry["error_code"] = ErrorCode.group_id_not_found
        entry["error_message"] = (
            f"Group {group_id} not found." if type_name is None else f"Group {group_id} is not a classic group."
        )
    return entry


def _described(group: ClassicGroup) -> dict[str, Any]:
    is_stable = group.state is STABLE
    return {
        "group_id": group.group_id,
        "group_state": group.state_name,
        "protocol_type": group.protocol_type,
        "protocol_data": group.protocol_name if is_stable else "",
        "members": [
            {
                "member_id": member.member_id,
                "group_instance_id": member.group_instance_id,
                "client_id": member.client_id,
                "client_host": member.client_host,
                # Between generations no protocol is chosen.
                "member_metadata": member.metadata(group.protocol_name) if is_stable else b"",
                "member_assignment": member.assignment,
            }
            for member in group.members.values()
        ],
    }
