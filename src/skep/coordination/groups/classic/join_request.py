"""The JoinGroup request of a classic member, and the member that it makes."""

import uuid
from typing import NamedTuple

from skep.coordination.groups.classic.classic_leave import session_of
from skep.coordination.groups.classic.classic_member import ClassicMember, Protocols

_LONGEST_CLIENT_ID = 255
"""Characters of the client id in a member id. Ids are also kept for clients that never join with them."""


class JoinRequest(NamedTuple):
    """``protocols`` has each name once. ``member_id`` is empty for a new member."""

    group_id: str
    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: Protocols
    reason: str | None
    version: int


def new_member_id(request: JoinRequest) -> str:
    """Returns the instance id or client id with a random suffix, as in Kafka."""
    return f"{request.group_instance_id or request.client_id[:_LONGEST_CLIENT_ID]}-{uuid.uuid4()}"


def member_of(request: JoinRequest, member_id: str) -> ClassicMember:
    session_key, on_session_expired = session_of(request.group_id, member_id)
    return ClassicMember(
        member_id=member_id,
        group_instance_id=request.group_instance_id,
        client_id=request.client_id,
        client_host=request.client_host,
        rebalance_timeout_ms=request.rebalance_timeout_ms,
        session_timeout_ms=request.session_timeout_ms,
        protocols=request.protocols,
        session_key=session_key,
        on_session_expired=on_session_expired,
    )
