"""JoinGroup (API 11), versions 0 to 9.

Behaviour
    The answer waits until all members have joined, or the longest rebalance timeout among them is over (a session
    timeout in version 0, which has no other). Who comes without an id from version 4 on is given one, with
    MEMBER_ID_REQUIRED, and comes back (KIP-394). Static members (5+, KIP-345) take the place of their earlier self. The
    leader is told of all members. From version 9 on a static leader that takes its own place in a stable group is told
    to skip the assignment (KIP-814); before, that somebody else leads.

    A static member that comes back to a stable group of more than 100 members waits until the record of the group is
    made, in slices. It is told to ask again, with COORDINATOR_LOAD_IN_PROGRESS, when the group changes meanwhile.

Refusals, in order
    INVALID_GROUP_ID; no coordinator here; INVALID_REQUEST for names that are too long; INVALID_SESSION_TIMEOUT;
    UNKNOWN_MEMBER_ID for an id in a group that is not there; POLICY_VIOLATION when there are too many groups;
    GROUP_MAX_SIZE_REACHED; INCONSISTENT_GROUP_PROTOCOL; FENCED_INSTANCE_ID, UNKNOWN_MEMBER_ID.

    GROUP_MAX_SIZE_REACHED says that there are group.max.size members, or that with this one they would bring more
    metadata than skep.max.group.metadata.bytes; a member that comes back with too much stays as it was. Clients give up
    on this code; they would repeat the request for ever on most others.

Differences
    A static member that comes back to a stable group with other topics begins a rebalance; in Kafka it does not. A
    group that nobody has been assigned anything in is not written to the log. Kafka has no limit for the metadata of a
    group; of a client id that is longer than 255 characters only these are in the member id.
"""

from datetime import timedelta
from typing import Any

from skep.base.errors import ErrorCode
from skep.broker.group_ids import check_group_id
from skep.broker.request import Request
from skep.broker.services import Services
from skep.coordination.groups import classic_requests
from skep.coordination.groups.classic.join_request import JoinRequest
from skep.wire.codec import Body

HAS_REBALANCE_TIMEOUT = 1
_MS = timedelta(milliseconds=1)


async def handle(services: Services, request: Request) -> Body:
    body = request.body
    check_group_id(services, body.group_id)
    session_timeout_ms = rebalance_timeout_ms = body.session_timeout // _MS
    if request.version >= HAS_REBALANCE_TIMEOUT:
        rebalance_timeout_ms = max(0, body.rebalance_timeout // _MS)
    protocols: dict[str, bytes] = {}
    for protocol in body.protocols:
        protocols.setdefault(protocol.name, protocol.metadata)
    wanted = JoinRequest(
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
    answer: dict[str, Any] = await services.groups.submit_and_wait(
        body.group_id, lambda shard, waiter: classic_requests.join(shard, wanted, waiter)
    )
    return answer


def refuse(request: Request, code: ErrorCode) -> Body:
    return {"error_code": code, "generation_id": -1, "member_id": request.body.member_id}
