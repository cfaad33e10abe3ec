"""Consumers of the classic protocol that end up in consumer groups: for tests of groups that change their kind."""

import io
import itertools
import struct

from kio.schema.consumer_protocol_subscription.v3.data import ConsumerProtocolSubscription, TopicPartition
from kio.serial import entity_writer

from skep.base.errors import ErrorCode, KafkaError
from skep.coordination.groups import group_coordinator
from skep.coordination.groups.classic.classic_leave import Leaving
from skep.coordination.groups.classic.classic_sync import SyncRequest
from skep.coordination.groups.classic.consumer_protocol import read_assignment, write_assignment
from skep.coordination.groups.classic.join_request import JoinRequest
from skep.coordination.groups.consumer.consumer_group import ConsumerGroup
from tests.unit.coordination.groups.consumer_clients import GROUP, check_owners


def subscription(topics, owned=None, version=3):
    buffer = io.BytesIO(struct.pack(">h", version))
    buffer.seek(2)
    entity_writer(ConsumerProtocolSubscription)(
        buffer,
        ConsumerProtocolSubscription(
            topics=tuple(topics),
            owned_partitions=tuple(
                TopicPartition(topic=topic, partitions=tuple(numbers)) for topic, numbers in (owned or {}).items()
            ),
        ),
    )
    return buffer.getvalue()


class Classic:
    """A consumer of the classic protocol with the cooperative-sticky assignor: it gives up only what it is told to."""

    ids = itertools.count()

    def __init__(self, world, *topics, instance_id=None, protocols=("cooperative-sticky",), is_eager=False):
        self.world, self.topics, self.instance_id = world, topics, instance_id
        self.protocols, self.is_eager = protocols, is_eager
        self.member_id, self.generation, self.owned = "", -1, {}
        self.error = None
        self.errors = []
        self._waiter, self._is_syncing = None, False

    def join(self):
        owned = {} if self.is_eager else {topic: sorted(numbers) for topic, numbers in self.owned.items()}
        request = JoinRequest(
            group_id=GROUP,
            member_id=self.member_id,
            group_instance_id=self.instance_id,
            client_id="classic",
            client_host="/h",
            session_timeout_ms=30_000,
            rebalance_timeout_ms=60_000,
            protocol_type="consumer",
            protocols=tuple((name, subscription(self.topics, owned)) for name in self.protocols),
            reason=None,
            version=9,
        )
        self._waiter, self._is_syncing = self._submit(group_coordinator.join, request), False
        return self

    def _submit(self, operation, request):
        return self.world.driver.submit_and_wait(lambda shard, waiter: operation(shard, request, waiter))

    def step(self):
        """Takes in a response, if there is one, or sends a heartbeat."""
        if self._waiter is None:
            self._heartbeat()
        elif self._waiter.is_answered:
            response, self._waiter = self._waiter.reply, None
            (self._synced if self._is_syncing else self._joined)(response)

    def _joined(self, response):
        if self._failed(response):
            return
        self.member_id, self.generation = response["member_id"], response["generation_id"]
        assignments = {}
        if response.get("leader") == self.member_id:
            members = [member["member_id"] for member in response["members"]]
            assignments = self._assign(sorted(members))
        request = SyncRequest(GROUP, self.generation, self.member_id, self.instance_id, None, None, assignments)
        self._waiter, self._is_syncing = self._submit(group_coordinator.sync, request), True

    def _assign(self, members):
        """As a client does: round robin over the partitions of its topics."""
        mine = {member: {} for member in members}
        turn = itertools.cycle(members)
        for topic in self.topics:
            for number in range(len(self.world.image.topics[topic].partitions)):
                mine[next(turn)].setdefault(topic, []).append(number)
        return {member: write_assignment(3, topics) for member, topics in mine.items()}

    def _synced(self, response):
        if self._failed(response):
            return
        before, self.owned = self.owned, dict(read_assignment(response["assignment"]).partitions)
        if any(numbers - self.owned.get(topic, set()) for topic, numbers in before.items()):
            self.join()

    def _heartbeat(self):
        try:
            response = self.world.driver.submit(
                lambda shard: group_coordinator.heartbeat(
                    shard, GROUP, self.member_id, self.instance_id, self.generation
                )
            )
        except KafkaError as error:
            response = error
        self._failed(response)

    def _failed(self, response):
        code = response.code if isinstance(response, KafkaError) else response.get("error_code", ErrorCode.none)
        self.error = code
        self.errors.append(code)
        if code is ErrorCode.none:
            return False
        if code is ErrorCode.member_id_required:
            self.member_id = response["member_id"]
        elif code is ErrorCode.unknown_member_id:
            self.member_id, self.owned = "", {}
        elif code is ErrorCode.illegal_generation:
            self.owned = {}
        elif code is not ErrorCode.rebalance_in_progress:
            return True
        self.join()
        return True

    def leave(self):
        return self.world.driver.submit(
            lambda shard: group_coordinator.leave(shard, GROUP, [Leaving(self.member_id, self.instance_id, None)])
        )

    def partitions(self, topic="t"):
        return set(self.owned.get(topic, ()))


def run(world, *members, rounds=15):
    for _ in range(rounds):
        world.driver.pass_ms(1_000)
        for member in members:
            if isinstance(member, Classic):
                member.step()
            else:
                member.beat()
        group = world.driver.shard.groups.get(GROUP)
        if isinstance(group, ConsumerGroup):
            check_owners(group)
