"""Consumer groups, everything at once: members come, go, freeze, lose responses; topics change; the broker restarts.

At every step no partition is held by two members, and no two clients that the group knows believe that they own the
same partition; every offset that was committed is there. Left alone, the group comes to rest with every partition owned
once; a replay gives the same group.
"""

import itertools
from contextlib import ExitStack
from unittest import mock

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, multiple, rule

from skep.coordination.groups.consumer import target_assignment
from skep.coordination.groups.consumer.consumer_group import ConsumerGroup
from skep.coordination.groups.offsets.offset_operations import Committer
from skep.coordination.groups.topic_patterns import topic_matches, topic_pattern
from tests.unit.coordination.groups.consumer_clients import (
    GROUP,
    SESSION_MS,
    Client,
    World,
    check_owners,
    logged_state,
    settle,
)
from tests.unit.coordination.groups.offset_machine import CommitsOffsets

TOPICS = ("t", "u", "v")
subscriptions = st.lists(st.sampled_from(TOPICS), unique=True)
regexes = st.sampled_from([None, None, None, "[tu]", ".*"])
instances = st.sampled_from([None, None, "i", "j"])
assignors = st.sampled_from([None, "range"])


class ConsumerGroups(CommitsOffsets, RuleBasedStateMachine):
    clients = Bundle("clients")

    @initialize(partitions=st.lists(st.integers(1, 5), min_size=1, max_size=3))
    def begin(self, partitions):
        self.world = World(**dict(zip(TOPICS, partitions, strict=False)))
        self.alive: list[Client] = []
        self.gone: list[Client] = []
        self.count = 0

    @property
    def driver(self):
        return self.world.driver

    def committers(self):
        return [Committer(client.member_id, client.instance_id, client.epoch) for client in self.alive + self.gone]

    def is_member_of_now(self, group, committer):
        return committer.generation_or_epoch == group.members[committer.member_id].member_epoch

    # Members.

    @rule(
        target=clients,
        topics=subscriptions,
        regex=regexes,
        instance=instances,
        assignor=st.sampled_from([None, "range"]),
    )
    def come(self, topics, regex, instance, assignor):
        if instance is not None and any(client.instance_id == instance for client in self.alive):
            return multiple()
        known = self._group().static_member(instance) if self._group() else None
        if known is not None and known.member_epoch != -2:
            return multiple()
        self.count += 1
        client = self.world.client(f"m{self.count}", *topics, regex=regex, instance_id=instance, assignor=assignor)
        self.alive.append(client)
        return client

    @rule(client=clients, is_response_lost=st.sampled_from([False, False, True]))
    def beat(self, client, is_response_lost):
        if client in self.alive:
            client.beat(is_response_lost=is_response_lost)

    @rule()
    def all_beat(self):
        settle(*self.alive, rounds=1)

    @rule(client=clients, is_slow=st.booleans())
    def be_slow_to_let_go(self, client, is_slow):
        if is_slow:
            client.is_slow = True
        else:
            client.let_go()

    @rule(client=clients, topics=subscriptions)
    def subscribe_to_something_else(self, client, topics):
        if client in self.alive and client.regex is None:
            client.subscribe(*topics)

    @rule(client=consumes(clients))
    def leave(self, client):
        if client in self.alive:
            self._go(client)
            if client.epoch and self._knows(client):
                client.leave()

    @rule(client=consumes(clients))
    def leave_for_a_while(self, client):
        if client in self.alive and client.instance_id is not None:
            self._go(client)
            if client.epoch and self._knows(client):
                client.leave(for_a_while=True)

    @rule(client=consumes(clients))
    def die(self, client):
        """Or freeze: it may yet commit what it has read."""
        if client in self.alive:
            self._go(client)

    def _go(self, client):
        self.alive.remove(client)
        self.gone.append(client)

    @rule(seconds=st.sampled_from([5, 20, 46]))
    def time_passes(self, seconds):
        self.world.driver.pass_ms(seconds * 1000)

    # The cluster.

    @rule(name=st.sampled_from(TOPICS), more=st.integers(1, 3))
    def a_topic_comes_or_grows(self, name, more):
        topic = self.world.image.topics.get(name)
        if topic is None:
            self.world.create(name, more)
        else:
            self.world.grow(name, min(8, len(topic.partitions) + more))

    @rule(name=st.sampled_from(TOPICS))
    def a_topic_goes(self, name):
        self.world.delete(name)

    @rule()
    def the_broker_restarts(self):
        self.world.driver.restart()

    # What is true.

    def _group(self) -> ConsumerGroup | None:
        return self.world.driver.shard.groups.get(GROUP)

    def _knows(self, client):
        group = self._group()
        return group is not None and client.member_id in group.members

    @invariant()
    def no_partition_has_two_owners(self):
        group = self._group()
        if group is None:
            return
        check_owners(group)
        owned = [
            (topic, number)
            for client in self.alive
            if self._knows(client)
            for topic, numbers in client.owned.items()
            for number in numbers
        ]
        assert len(owned) == len(set(owned))

    @invariant()
    def a_replay_gives_the_same_group(self):
        replayed = self.world.driver.replayed()
        assert replayed.memory.bytes == self.world.driver.shard.memory.bytes
        group, again = self._group(), replayed.groups.get(GROUP)
        assert (group is None) == (again is None)
        if group is not None:
            assert logged_state(group) == logged_state(again)

    def teardown(self):
        super().teardown()
        for client in self.alive:
            client.let_go()
        for _ in range(SESSION_MS // 5_000 + 1):
            self.world.driver.pass_ms(5_000)
            settle(*self.alive, rounds=1)
        for _ in range(12):
            self.world.driver.pass_ms(0)
            settle(*self.alive, rounds=1)
        if not self.alive:
            assert self._group() is None or self._group().is_empty
            return
        assert self._group().state_name == "Stable"
        owned = sorted(
            (topic, number) for client in self.alive for topic, numbers in client.owned.items() for number in numbers
        )
        wanted = {name for client in self.alive if client.regex is None for name in client.topics}
        for client in self.alive:
            wanted |= {".*": set(TOPICS), "[tu]": {"t", "u"}, None: set()}[client.regex]
        topics = self.world.image.topics
        assert owned == sorted(
            (topics[name].topic_id, number)
            for name in wanted & topics.keys()
            for number in range(len(topics[name].partitions))
        )


class LargeConsumerGroups(ConsumerGroups):
    """The same of groups so large that topics are matched and partitions assigned in many operations."""

    def __init__(self):
        super().__init__()
        self._stack = ExitStack()
        for module, name, value in (
            (topic_matches, "STEPS_AT_ONCE", 1),
            (topic_pattern, "CHARACTERS_AT_ONCE", 0),
            (target_assignment, "SMALL_COST", -1),
            (target_assignment, "STEPS_AT_ONCE", 1),
            (target_assignment, "MEMBERS_AT_ONCE", 1),
        ):
            self._stack.enter_context(mock.patch.object(module, name, value))

    @rule(count=st.integers(1, 6))
    def some_operations_are_carried_out(self, count):
        for operation in itertools.islice(self.world.driver.timers.take_due(), count):
            self.world.driver.submit(operation)

    def teardown(self):
        with self._stack:
            super().teardown()


TestConsumerGroups = ConsumerGroups.TestCase
TestConsumerGroups.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)

TestLargeConsumerGroups = LargeConsumerGroups.TestCase
TestLargeConsumerGroups.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
