"""What somebody says who joins a classic group."""

import uuid
from typing import NamedTuple

from skep.coordination.groups.classic.classic_leave import session_of
from skep.coordination.groups.classic.classic_member import ClassicMember, Protocols

_LONGEST_CLIENT_ID = 255
"""In characters, of what is made a part of a member id: ids are kept for those who never come back with them."""


class JoinRequest(NamedTuple):
    """``protocols`` has each name once. ``member_id`` is empty for somebody who is new."""

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
    """As in Kafka, what the client calls itself and something that nobody else has."""
    return f"{request.group_instance_id or request.client_id[:_LONGEST_CLIENT_ID]}-{uuid.uuid4()}"


def member_of(request: JoinRequest, member_id: str) -> ClassicMember:
    session_key, on_silence = session_of(request.group_id, member_id)
    return ClassicMember(
        member_id=member_id,
        group_instance_id=request.group_instance_id,
        client_id=request.client_id,
        client_host=request.client_host,
        rebalance_timeout_ms=request.rebalance_timeout_ms,
        session_timeout_ms=request.session_timeout_ms,
        protocols=request.protocols,
        session_key=session_key,
        on_silence=on_silence,
    )
