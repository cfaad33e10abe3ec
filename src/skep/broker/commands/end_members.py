"""The command ``end_members``: members of a share group were fenced, so their sessions here end, and their locks.

For brokers: the coordinator of the group sends it to all of them (``coordination/groups/share/fenced_members.py``). It
may come late, when the member has joined again: then it begins another session.

Arguments
    ``group``, ``members``.
"""

from collections.abc import Mapping
from typing import Any

from skep.broker.commands.command import Command, text, texts
from skep.broker.services import Services
from skep.coordination.groups.share.fenced_members import LONGEST_MEMBER_ID, MEMBERS_AT_ONCE


async def _end_members(services: Services, arguments: Mapping[str, Any]) -> None:
    work = services.share_sessions.end_members(arguments["group"], arguments["members"])
    await services.slicer.finish(work)


COMMAND = Command(_end_members, {"group": text(), "members": texts(most=MEMBERS_AT_ONCE, longest=LONGEST_MEMBER_ID)})
