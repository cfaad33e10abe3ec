"""Tells the brokers which members of share groups were fenced, so that these lose their sessions and locks there.

A member is fenced by the coordinator of its group when it has sent no heartbeat for the session timeout. The leaders of
partitions do not know members, only connections, and the connection of a process that hangs, or of a machine that is
gone, stays open for long. Without a word from the coordinator, the records of such a member would stay locked until the
locks expire, and Kafka leaves it at that.

Every broker is told, because a member may hold records of partitions that it is no longer assigned. Nothing is
repeated: if a broker cannot be reached, the locks expire there.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

from skep.base.errors import KafkaError
from skep.base.ids import BrokerId
from skep.base.loop.supervisor import Supervisor
from skep.client.commands import VERSION, command_body, result_of
from skep.client.errors import ClientError
from skep.coordination.partition_leaders import PeerRequests
from skep.metadata.cluster_image import ClusterImage
from skep.metadata.model import BrokerRecord
from skep.wire.apis import SKEP_COMMAND

logger = logging.getLogger(__name__)

COMMAND = "end_members"
LONGEST_MEMBER_ID = 36
"""A longer one cannot have a share session, as in Kafka: it has to be the text of a UUID."""
MEMBERS_AT_ONCE = 200
"""In one command, so that their ids are within the bounds of its arguments in any encoding."""


class FencedMembers:
    """Owns the members that the brokers have not been told of yet, by group. ``end_here`` is for this broker."""

    def __init__(
        self, node_id: BrokerId, image: Callable[[], ClusterImage], peers: PeerRequests, supervisor: Supervisor
    ) -> None:
        self._node_id = node_id
        self._image = image
        self._peers = peers
        self._supervisor = supervisor
        self._waiting: dict[str, list[str]] = {}
        self.end_here: Callable[[str, Sequence[str]], Awaitable[None]] = _nobody_here

    def add(self, group_id: str, member_id: str) -> None:
        """Those of one turn of the event loop are told of together: many members may be lost with their machine."""
        if len(member_id) > LONGEST_MEMBER_ID:
            return
        if not self._waiting:
            self._supervisor.spawn("tell the brokers of fenced members", self._tell_all())
        self._waiting.setdefault(group_id, []).append(member_id)

    async def _tell_all(self) -> None:
        """A task begins in the next turn. Brokers are told independently: one that is silent delays no other."""
        waiting, self._waiting = self._waiting, {}
        others = [one for one in self._image().brokers.values() if one.id != self._node_id]
        told: list[Awaitable[None]] = []
        for group_id, members in waiting.items():
            for start in range(0, len(members), MEMBERS_AT_ONCE):
                some = members[start : start + MEMBERS_AT_ONCE]
                told += [self.end_here(group_id, some), *(self._tell(broker, group_id, some) for broker in others)]
        await asyncio.gather(*told)

    async def _tell(self, broker: BrokerRecord, group_id: str, members: Sequence[str]) -> None:
        body = command_body(COMMAND, {"group": group_id, "members": list(members)})
        try:
            result_of(await self._peers.ask(broker, SKEP_COMMAND, body, version=VERSION))
        except (ClientError, KafkaError) as error:
            logger.warning(
                "broker %d was not told of %d fenced members of group %s: %s", broker.id, len(members), group_id, error
            )


async def _nobody_here(_group_id: str, _members: Sequence[str]) -> None:
    pass
