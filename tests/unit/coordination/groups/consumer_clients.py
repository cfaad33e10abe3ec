"""A cluster's topics, a group shard, and clients that do what KIP-848 asks of them: for tests of consumer groups."""

import itertools
import uuid
from typing import Any

import pytest

from skep.base.config.broker_config import read_broker_config
from skep.base.config.current_config import CurrentConfig
from skep.base.errors import ErrorCode, KafkaError
from skep.base.ids import BrokerId
from skep.coordination.group_records import decode_group_record
from skep.coordination.groups.consumer.consumer_group import ConsumerGroup
from skep.coordination.groups.group_shard import GroupShard
from skep.coordination.groups.membership.consumer_heartbeat import HeartbeatRequest, heartbeat
from skep.metadata.cluster_image import ClusterImage
from skep.metadata.model import PartitionRecord, TopicRecord
from tests.unit.coordination.driver import ShardDriver

SESSION_MS = 45_000
GROUP = "g"
TO_JOIN_AGAIN = (ErrorCode.fenced_member_epoch, ErrorCode.unknown_member_id, ErrorCode.group_id_not_found)
Owned = dict[uuid.UUID, frozenset[int]]
JOINING: dict[str, Any] = {"rebalance_timeout_ms": 60_000, "topic_names": frozenset({"t"}), "owned": {}}
"""What a first heartbeat says besides who sends it."""


class World:
    """Topics can be made, grown and deleted; ``driver`` has the shard."""

    def __init__(self, **topics: int) -> None:
        self.image = ClusterImage.of("cluster")
        self.config = CurrentConfig(read_broker_config({}))
        self._ids = itertools.count(1)
        for name, partitions in topics.items():
            self.create(name, partitions)
        self.driver = ShardDriver(
            lambda context: GroupShard(context, self.config, lambda: self.image), decode_group_record
        )

    def create(self, name: str, partitions: int) -> None:
        topic_id = uuid.UUID(int=next(self._ids))
        self.image = self.image.with_topic(TopicRecord(name, topic_id, self._partitions(partitions)))

    def grow(self, name: str, partitions: int) -> None:
        topic = self.image.topics[name]
        self.image = self.image.with_topic(TopicRecord(name, topic.topic_id, self._partitions(partitions)))

    def delete(self, name: str) -> None:
        self.image = self.image.without_topic(name)

    @staticmethod
    def _partitions(count: int) -> tuple[PartitionRecord, ...]:
        return (PartitionRecord.new((BrokerId(1),)),) * count

    def set_option(self, name: str, text: str) -> None:
        self.config.value = read_broker_config({name: text}, self.config.value)

    def topic_id(self, name: str) -> uuid.UUID:
        return self.image.topics[name].topic_id

    def group(self, group_id: str = GROUP) -> ConsumerGroup:
        group = self.driver.shard.groups[group_id]
        assert isinstance(group, ConsumerGroup)
        return group

    def beat(self, member_id: str, member_epoch: int, group_id: str = GROUP, **said: Any) -> dict[str, Any]:
        """One heartbeat; the response."""
        response: dict[str, Any] = self.driver.submit(
            lambda shard: heartbeat(shard, HeartbeatRequest(group_id, member_id, member_epoch, **said))
        )
        return response

    def client(self, member_id: str, *topics: str, **settings: Any) -> "Client":
        return Client(self, member_id, *topics, **settings)


def refusal(world: World, *said: Any, **more: Any) -> ErrorCode:
    with pytest.raises(KafkaError) as caught:
        world.beat(*said, **more)
    return caught.value.code


class Client:
    """A consumer: it remembers its epoch and what it was given, and gives up what it is told to.

    Whenever a response is missing it says everything in its next heartbeat.
    """

    def __init__(
        self,
        world: World,
        member_id: str,
        *topics: str,
        group_id: str = GROUP,
        regex: str | None = None,
        instance_id: str | None = None,
        assignor: str | None = None,
        rebalance_timeout_ms: int = 60_000,
    ) -> None:
        self.world = world
        self.group_id = group_id
        self.member_id = member_id
        self.topics = frozenset(topics)
        self.regex = regex
        self.instance_id = instance_id
        self.assignor = assignor
        self.rebalance_timeout_ms = rebalance_timeout_ms
        self.epoch = 0
        self.owned: Owned = {}
        self._says_all = True
        self._says_owned = False
        self.is_slow = False
        """It does not give up what it is told to; ``let_go`` does."""
        self._to_keep: Owned | None = None

    def subscribe(self, *topics: str) -> None:
        self.topics = frozenset(topics)
        self._says_all = True

    def join(self) -> "Client":
        self.beat()
        return self

    def beat(self, *, is_response_lost: bool = False) -> dict[str, Any] | None:
        """A heartbeat, taking in the response; a fenced client begins anew. None if that was lost or an error."""
        said: dict[str, Any] = {}
        if self._says_all or self.epoch == 0:
            said = {
                "rebalance_timeout_ms": self.rebalance_timeout_ms,
                "topic_names": self.topics if self.regex is None else None,
                "topic_regex": self.regex,
                "server_assignor": self.assignor,
                "instance_id": self.instance_id,
                "owned": self.owned,
            }
        elif self._says_owned:
            said = {"owned": self.owned}
        try:
            response = self.world.beat(
                self.member_id, self.epoch, self.group_id, client_id=f"client of {self.member_id}", **said
            )
        except KafkaError as error:
            if self.epoch == 0 or error.code not in TO_JOIN_AGAIN:
                raise
            if not is_response_lost:
                self.epoch, self.owned, self._to_keep = 0, {}, None
            self._says_all = True
            return None
        if is_response_lost:
            self._says_all = True
            return None
        self._says_all = self._says_owned = False
        self.epoch = response["member_epoch"]
        if response["assignment"] is not None:
            self._take(_owned(response["assignment"]["topic_partitions"]))
        return response

    def _take(self, assigned: Owned) -> None:
        if self.is_slow and any(numbers - assigned.get(topic, frozenset()) for topic, numbers in self.owned.items()):
            self._to_keep = assigned
        elif assigned != self.owned or self._to_keep is not None:
            self.owned, self._to_keep, self._says_owned = assigned, None, True

    def let_go(self) -> None:
        self.is_slow = False
        if self._to_keep is not None:
            self._take(self._to_keep)

    def leave(self, *, for_a_while: bool = False) -> dict[str, Any]:
        response = self.world.beat(
            self.member_id, -2 if for_a_while else -1, self.group_id, instance_id=self.instance_id
        )
        self.epoch, self.owned, self._says_all = 0, {}, True
        return response

    def partitions(self, topic: str) -> set[int]:
        return set(self.owned.get(self.world.topic_id(topic), ()))


def _owned(topic_partitions: list[dict[str, Any]]) -> Owned:
    return {entry["topic_id"]: frozenset(entry["partitions"]) for entry in topic_partitions if entry["partitions"]}


def settle(*clients: Client, rounds: int = 12) -> None:
    for _ in range(rounds):
        for client in clients:
            client.beat()


NOT_LOGGED = ("memory", "seen_topics", "matches", "assigning", "assignable_at", "owes_epoch")


def logged_state(group: ConsumerGroup) -> dict[str, Any]:
    """All of a group that a replay gives back."""
    return {name: value for name, value in vars(group).items() if name not in NOT_LOGGED}


def check_owners(group: ConsumerGroup) -> None:
    """No partition is held by two members, and the owners are what the members say."""
    owners: dict[uuid.UUID, dict[int, str]] = {}
    for member in group.members.values():
        for held in (member.assigned, member.pending_revocation):
            for topic, numbers in held.items():
                for number in numbers:
                    assert number not in owners.setdefault(topic, {}), (topic, number, member)
                    owners[topic][number] = member.member_id
    assert owners == group.owners
