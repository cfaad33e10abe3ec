"""Members of both protocols in one group, at random: whatever comes and goes, the group comes to rest.

While it is a consumer group no partition is held twice; at the end every partition is owned once, and the group is of
the kind that its members speak. Offsets stay whatever the group becomes.
"""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule

from skep.coordination import background
from skep.coordination.groups.classic.classic_group import ClassicGroup
from skep.coordination.groups.consumer.consumer_group import ConsumerGroup
from skep.coordination.groups.migration import large_downgrade
from skep.coordination.groups.offsets.offset_operations import Committer
from tests.unit.coordination.groups.consumer_clients import GROUP, World, check_owners, logged_state
from tests.unit.coordination.groups.mixed_clients import Classic, run
from tests.unit.coordination.groups.offset_machine import CommitsOffsets


class MixedGroups(CommitsOffsets, RuleBasedStateMachine):
    members = Bundle("members")

    @initialize(partitions=st.integers(1, 6))
    def begin(self, partitions):
        self.world = World(t=partitions)
        self.alive = []
        self.count = 0

    @property
    def driver(self):
        return self.world.driver

    def committers(self):
        return [
            Committer(member.member_id, None, member.generation if isinstance(member, Classic) else member.epoch)
            for member in self.alive
        ]

    def is_member_of_now(self, group, committer):
        member = group.members[committer.member_id]
        now = group.generation_id if isinstance(group, ClassicGroup) else member.member_epoch
        return committer.generation_or_epoch == now

    @rule(target=members)
    def come_with_the_new_protocol(self):
        self.count += 1
        member = self.world.client(f"n{self.count}", "t")
        self.alive.append(member)
        return member

    @rule(target=members, is_eager=st.booleans())
    def come_with_the_classic_protocol(self, is_eager):
        member = Classic(self.world, "t", is_eager=is_eager).join()
        self.alive.append(member)
        return member

    @rule(rounds=st.integers(1, 6))
    def everybody_goes_on(self, rounds):
        run(self.world, *self.alive, rounds=rounds)

    @rule(member=members)
    def one_goes_on(self, member):
        if member in self.alive:
            run(self.world, member, rounds=1)

    @rule(member=consumes(members))
    def leave(self, member):
        if member in self.alive:
            self.alive.remove(member)
            group = self.world.driver.shard.groups.get(GROUP)
            if group is not None and member.member_id in group.members:
                member.leave()

    @rule(member=consumes(members))
    def die(self, member):
        if member in self.alive:
            self.alive.remove(member)

    @rule(seconds=st.sampled_from([5, 31, 61]))
    def time_passes(self, seconds):
        self.world.driver.pass_ms(seconds * 1000)

    @rule()
    def the_topic_grows(self):
        self.world.grow("t", min(8, len(self.world.image.topics["t"].partitions) + 1))

    @rule()
    def the_broker_restarts(self):
        self.world.driver.restart()

    @invariant()
    def a_consumer_group_is_what_its_records_say(self):
        group = self.world.driver.shard.groups.get(GROUP)
        if isinstance(group, ConsumerGroup):
            check_owners(group)
            assert logged_state(group) == logged_state(self.world.driver.replayed().groups[GROUP])

    def teardown(self):
        super().teardown()
        # Sessions of 45 s, and rebalances that wait 60 s for members that are gone, one after the other.
        run(self.world, *self.alive, rounds=200)
        group = self.world.driver.shard.groups.get(GROUP)
        if not self.alive:
            assert group is None or group.is_empty
            return
        has_new = any(not isinstance(member, Classic) for member in self.alive)
        assert type(group) is (ConsumerGroup if has_new else ClassicGroup)
        assert group.state_name == "Stable"
        owned = sorted(number for member in self.alive for number in member.partitions("t"))
        # Clients of classic groups look for new partitions themselves, which those here do not.
        count = len(self.world.image.topics["t"].partitions)
        assert owned == list(range(count)) if has_new else owned == list(range(len(owned)))


class MixedLargeGroups(MixedGroups):
    """Every group is a large one: it becomes a classic group in steps, between which anything may happen."""

    def __init__(self):
        super().__init__()
        self._patch = pytest.MonkeyPatch()
        self._patch.setattr(large_downgrade, "SMALL_GROUP", 0)
        self._patch.setattr(large_downgrade, "MEMBERS_AT_ONCE", 0)
        self._patch.setattr(large_downgrade, "SESSIONS_AT_ONCE", 1)
        self._patch.setattr(background, "STEPS_AT_ONCE", 1)

    @rule()
    def the_coordinator_takes_a_step(self):
        operation = next(self.world.driver.timers.take_due(), None)
        if operation is not None:
            self.world.driver.submit(operation)

    def teardown(self):
        try:
            super().teardown()
        finally:
            self._patch.undo()


TestMixedGroups = MixedGroups.TestCase
TestMixedGroups.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)
TestMixedLargeGroups = MixedLargeGroups.TestCase
TestMixedLargeGroups.settings = TestMixedGroups.settings


def test_the_last_member_of_the_new_protocol_leaves_before_a_classic_one_has_joined():
    """A schedule that random search found."""
    state = MixedGroups()
    state.begin(partitions=1)
    first = state.come_with_the_new_protocol()
    state.everybody_goes_on(rounds=1)
    state.come_with_the_classic_protocol(is_eager=False)
    state.leave(member=first)
    state.teardown()
