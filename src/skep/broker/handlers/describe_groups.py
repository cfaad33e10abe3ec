"""DescribeGroups (API 15), versions 0 to 6.

Behaviour
    Classic groups with their members. What the members say, and the protocol, only of stable groups: between
    generations there is none. A group that is not there is Dead; from version 6 on also GROUP_ID_NOT_FOUND. So is one
    of another kind, which ConsumerGroupDescribe shows. A group that is named again is there once.

Refusals, per group, in order
    INVALID_GROUP_ID; no coordinator here.
"""

import functools
from typing import Any

from skep.base.errors import ErrorCode, KafkaError
from skep.broker.authorized_operations import NOT_ASKED, ON_GROUP
from skep.broker.group_ids import check_group_id
from skep.broker.named_items import ask_each
from skep.broker.request import Request
from skep.broker.services import Services
from skep.coordination.groups.classic import classic_description as classic_describe
from skep.coordination.groups.group_shard import GroupShard
from skep.coordination.shard import Outcome
from skep.wire.codec import Body
from skep.wire.lazy_array import LazyArray


async def handle(services: Services, request: Request) -> Body:
    operations = ON_GROUP if getattr(request.body, "include_authorized_operations", False) else NOT_ASKED

    def describe(group_id: str) -> Any:
        check_group_id(services, group_id, may_be_empty=True)
        return services.groups.submit(group_id, functools.partial(_described, group_id, request.version, operations))

    return {"groups": await ask_each(services.slicer, request.body.groups, describe, _refused)}


def _described(group_id: str, version: int, operations: int, shard: GroupShard) -> Outcome:
    outcome = classic_describe.describe(shard, group_id, version)
    outcome.response["authorized_operations"] = NOT_ASKED if outcome.response.get("error_code") else operations
    return outcome


def _refused(group_id: str, error: KafkaError) -> dict[str, Any]:
    return {"group_id": group_id, "error_code": error.code, "authorized_operations": NOT_ASKED}


def refuse(request: Request, code: ErrorCode) -> Body:
    return {"groups": LazyArray(request.body.groups, lambda name: {"group_id": name, "error_code": code})}
