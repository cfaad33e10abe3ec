"""How far the groups of the cluster are in topics: the sum of what all coordinators know (``TopicNeeds``).

A broker asks itself by a call, and the others with the command ``topic_needs`` of the private API. Each response names
the partitions of ``__consumer_offsets`` and ``__share_group_state`` that it speaks for. Only if these are all of them,
asked of the brokers that lead them from the first request to the last response, there is a result.
"""

import asyncio
import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple
from uuid import UUID

from skep.base.config.coordinator_config import CONSUMER_OFFSETS, SHARE_GROUP_STATE
from skep.base.errors import ErrorCode, KafkaError
from skep.base.ids import BrokerId
from skep.client.errors import ClientError
from skep.coordination.coordinator_runtime import CoordinatorRuntime
from skep.coordination.groups.group_shard import GroupShard
from skep.coordination.partition_leaders import PeerRequests
from skep.coordination.share.share_shard import ShareShard
from skep.coordination.topic_needs import Needs, TopicNeeds, Topics, merge_needs, needs_of_groups, needs_of_shares
from skep.metadata.cluster_image import ClusterImage
from skep.metadata.model import BrokerRecord
from skep.wire.apis import SKEP_COMMAND

COMMAND = "topic_needs"
_VERSION = 0
_COORDINATORS = (CONSUMER_OFFSETS, SHARE_GROUP_STATE)


class Unknown(Exception):
    """Not all coordinators have answered; the text says which one."""


class Progress(NamedTuple):
    """What one broker knows. ``partitions`` are those of the two topics of coordinators that it speaks for."""

    partitions: Mapping[str, frozenset[int]]
    needs: Needs

    def to_json(self) -> dict[str, Any]:
        return {
            "partitions": {topic: sorted(numbers) for topic, numbers in self.partitions.items()},
            "needs": {name: needs.to_json() for name, needs in self.needs.items()},
        }

    @classmethod
    def of_json(cls, found: Mapping[str, Any]) -> "Progress":
        return cls(
            {topic: frozenset(numbers) for topic, numbers in found["partitions"].items()},
            {name: TopicNeeds.of_json(needs) for name, needs in found["needs"].items()},
        )


class GroupProgress:
    """Has no state but that of the coordinators."""

    def __init__(
        self,
        node_id: BrokerId,
        image: Callable[[], ClusterImage],
        groups: CoordinatorRuntime[GroupShard],
        shares: CoordinatorRuntime[ShareShard],
        peers: PeerRequests,
    ) -> None:
        self._node_id = node_id
        self._image = image
        self._groups = groups
        self._shares = shares
        self._peers = peers

    async def here(self, topics: Topics) -> Progress:
        """Returns what the coordinators in this process know."""
        groups = await self._groups.read_led(lambda shard: needs_of_groups(shard, topics))
        shares = await self._shares.read_led(lambda shard: needs_of_shares(shard, topics))
        needs: Needs = {}
        for known in (*groups.values(), *shares.values()):
            merge_needs(needs, known or {})
        return Progress({CONSUMER_OFFSETS: frozenset(groups), SHARE_GROUP_STATE: frozenset(shares)}, needs)

    async def everywhere(self, topics: Topics) -> Needs:
        """Returns what all groups of the cluster need of these topics. Raises Unknown."""
        image = self._image()
        led = _led(image)
        found = await asyncio.gather(*(self._of(image.brokers[broker_id], topics) for broker_id in led))
        needs: Needs = {}
        for (broker_id, partitions), progress in zip(led.items(), found, strict=True):
            for topic, numbers in partitions.items():
                if missing := numbers - progress.partitions.get(topic, frozenset()):
                    raise Unknown(f"broker {broker_id} has not loaded {topic}-{min(missing)}")
            merge_needs(needs, progress.needs)
        now = self._image()
        if any(now.topics.get(topic) is not image.topics.get(topic) for topic in _COORDINATORS):
            # A partition that has moved meanwhile may have been asked too early, and its new leader not at all.
            raise Unknown("coordinators are moving")
        return needs

    async def _of(self, broker: BrokerRecord, topics: Topics) -> Progress:
        if broker.id == self._node_id:
            return await self.here(topics)
        arguments = {"topics": [[name, str(topic_id)] for name, topic_id in topics.items()]}
        body = {"command": COMMAND, "arguments": json.dumps(arguments).encode()}
        try:
            response = await self._peers.ask(broker, SKEP_COMMAND, body, version=_VERSION)
            if response.error_code is not ErrorCode.none:
                raise KafkaError(response.error_code, response.error_message or "")
            return Progress.of_json(json.loads(response.result))
        except (ClientError, KafkaError, ValueError, LookupError, TypeError) as error:
            raise Unknown(f"broker {broker.id} does not say how far its groups are: {error}") from None


def _led(image: ClusterImage) -> dict[BrokerId, dict[str, set[int]]]:
    """Returns the partitions of both topics by the brokers that lead them. Raises Unknown if one has no leader."""
    found: dict[BrokerId, dict[str, set[int]]] = {}
    for topic in _COORDINATORS:
        record = image.topics.get(topic)
        for index, partition in enumerate(record.partitions if record is not None else ()):
            if partition.leader not in image.brokers:
                raise Unknown(f"{topic}-{index} has no leader now")
            found.setdefault(partition.leader, {}).setdefault(topic, set()).add(index)
    return found


def topics_of(pairs: list[list[str]]) -> dict[str, UUID]:
    """Returns the argument of the command. Raises ValueError."""
    return {name: UUID(topic_id) for name, topic_id in pairs}
