"""ListGroups (API 16), versions 0 to 5.

Behaviour
    The groups whose coordinator is this broker; from version 4 on only those in one of the states asked for, from 5 on
    only those of one of the types, case-insensitively. A group that has nothing but offsets is Empty and classic.

Refusals
    COORDINATOR_LOAD_IN_PROGRESS while a part of the groups is still being loaded: half a list would look like all.
"""

from collections.abc import Iterator, Set
from typing import Any

from skep.base.errors import ErrorCode, KafkaError
from skep.base.loop.slicer import Work
from skep.broker.request import Request
from skep.broker.services import Services
from skep.coordination.groups.group_shard import GroupShard
from skep.wire.codec import Body

GROUPS_AT_ONCE = 100
"""Looked at without a pause."""


async def handle(services: Services, request: Request) -> Body:
    if services.groups.is_loading:
        raise KafkaError(ErrorCode.coordinator_load_in_progress, "groups are being loaded")
    states = {state.lower() for state in getattr(request.body, "states_filter", ())}
    types = {kind.lower() for kind in getattr(request.body, "types_filter", ())}
    groups = []
    for index in services.groups.indexes():
        groups += await services.groups.read(index, lambda shard: _listed(shard, states, types))
    return {"groups": groups}


def _listed(shard: GroupShard, states: Set[str], types: Set[str]) -> Work[list[dict[str, Any]]]:
    listed = []
    for number, group in enumerate(_groups(shard)):
        if (not states or group["group_state"].lower() in states) and (
            not types or group["group_type"].lower() in types
        ):
            listed.append(group)
        if not number % GROUPS_AT_ONCE:
            yield
    return listed


def _groups(shard: GroupShard) -> Iterator[dict[str, Any]]:
    for group in list(shard.groups.values()):
        yield {
            "group_id": group.group_id,
            "protocol_type": group.protocol_type,
            "group_state": group.state_name,
            "group_type": group.type_name,
        }
    for group_id in shard.offsets.groups():
        if group_id not in shard.groups:
            yield {"group_id": group_id, "protocol_type": "", "group_state": "Empty", "group_type": "classic"}


def refuse(request: Request, code: ErrorCode) -> Body:
    return {"error_code": code, "groups": []}
