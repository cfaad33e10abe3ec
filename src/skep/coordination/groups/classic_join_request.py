"""What somebody says who joins a classic group."""

from typing import NamedTuple

from skep.coordination.groups.classic_leaving import session_of
from skep.coordination.groups.classic_member import ClassicMember, Protocols


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
