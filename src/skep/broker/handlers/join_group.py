"""JoinGroup (API 11), versions 0 to 9.

Behaviour
    The response waits until all members have joined, or until the longest rebalance timeout among them is over. The
    leader gets the metadata of all members. A static member (KIP-345) replaces its predecessor with the same instance
    id.

    The first JoinGroup of a group waits, for at most five seconds, until the coordinator knows that it is one and has
    loaded its groups: on a new cluster another broker may have named it before it does. Kafka refuses, and some clients
    then give up (kafkajs).

    A static member that returns to a stable group of more than 100 members waits until the record of the group is
    made, in slices. It gets COORDINATOR_LOAD_IN_PROGRESS, on which clients retry, if the group changes meanwhile.

Versions
    1: ``rebalance_timeout_ms``; in version 0 the session timeout serves for both.
    2: ``throttle_time_ms``.
    3 changes nothing here (quotas).
    4: a member without an id gets one with MEMBER_ID_REQUIRED, and joins again with it (KIP-394).
    5: ``group_instance_id``, for static members (KIP-345).
    6 is flexible.
    7: the protocol type in the response, whose protocol name may be null (KIP-559).
    8: ``reason`` (KIP-800), which is logged.
    9: ``skip_assignment`` for a static leader that returns to a stable group (KIP-814); before, another one is named.

Refusals, in order
    INVALID_GROUP_ID; no coordinator here; INVALID_REQUEST for names that are too long; INVALID_SESSION_TIMEOUT;
    UNKNOWN_MEMBER_ID for a member id in a group that does not exist; POLICY_VIOLATION when there are too many groups;
    GROUP_MAX_SIZE_REACHED; INCONSISTENT_GROUP_PROTOCOL; FENCED_INSTANCE_ID, UNKNOWN_MEMBER_ID.

    GROUP_MAX_SIZE_REACHED: the group has group.max.size members, or the metadata of its members would exceed
    skep.max.group.metadata.bytes. A member that rejoins with too much metadata keeps what it had. Clients give up on
    this code; they would retry most others for ever.

Differences
    A static member that returns to a stable group with other topics starts a rebalance; in Kafka it does not. A group
    without any assignment so far is not written to the log. Kafka has no limit on the metadata of a group. A member id
    contains at most 255 characters of the client id.
"""

from collections.abc import Awaitable
from datetime import timedelta
from typing import TYPE_CHECKING

from skep.base.errors import ErrorCode
from skep.broker.request import Request
from skep.broker.services import Services
from skep.coordination.groups.classic.join_request import JoinRequest
from skep.wire.codec import Body

if TYPE_CHECKING:
    from skep.wire.entities.request_types import JoinGroupRequest

HAS_REBALANCE_TIMEOUT = 1
_MS = timedelta(milliseconds=1)


def handle(services: Services, request: "Request[JoinGroupRequest]") -> Awaitable[Body]:
    body = request.body
    session_timeout_ms = rebalance_timeout_ms = body.session_timeout // _MS
    if request.version >= HAS_REBALANCE_TIMEOUT:
        rebalance_timeout_ms = max(0, body.rebalance_timeout // _MS)
    protocols: dict[str, bytes] = {}
    for protocol in body.protocols:
        protocols.setdefault(protocol.name, protocol.metadata)
    return services.groups.join_group(
        JoinRequest(
            group_id=body.group_id,
            member_id=body.member_id,
            group_instance_id=getattr(body, "group_instance_id", None),
            client_id=request.client_id or "",
            client_host=f"/{request.client_host}",
            session_timeout_ms=session_timeout_ms,
            rebalance_timeout_ms=rebalance_timeout_ms,
            protocol_type=body.protocol_type,
            protocols=tuple(protocols.items()),
            reason=getattr(body, "reason", None),
            version=request.version,
        )
    )


def refuse(request: "Request[JoinGroupRequest]", code: ErrorCode) -> Body:
    return {"error_code": code, "generation_id": -1, "member_id": request.body.member_id}
