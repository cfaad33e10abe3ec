"""Share groups: joining, staying, leaving, epochs, assignments, and who is refused."""

import contextlib
import gc
import tracemalloc

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from skep.base.errors import ErrorCode, KafkaError
from skep.coordination.groups.classic.classic_leave import Leaving
from skep.coordination.groups.classic.classic_sync import SyncRequest
from skep.coordination.groups.classic.join_request import JoinRequest
from skep.coordination.groups.group_coordinator import heartbeat, join, leave, sync
from skep.coordination.groups.membership import consumer_heartbeat
from skep.coordination.groups.membership.consumer_heartbeat import HeartbeatRequest
from skep.coordination.groups.offsets import offset_operations
from skep.coordination.groups.offsets.offset_expiry import expire
from skep.coordination.groups.offsets.offset_operations import Committer, WantedOffset
from tests.unit.coordination.groups.consumer_clients import GROUP
from tests.unit.coordination.groups.share_clients import SESSION_MS, ShareWorld, code_of, logged_state

INTERVAL_MS = 1_000


def test_the_first_heartbeat_of_a_member_has_its_assignment():
    world = ShareWorld(t=3)
    response = world.beat("a", 0, topics="t")
    assert response["assignment"] == {"topic_partitions": [{"topic_id": world.topic_id("t"), "partitions": [0, 1, 2]}]}
    assert response["heartbeat_interval"].total_seconds() == 5
    assert response["member_epoch"] == world.share_group().group_epoch
    assert world.share_group().state_name == "Stable"


def test_a_heartbeat_without_news_writes_nothing_and_tells_nothing():
    world = ShareWorld(t=3)
    epoch = world.beat("a", 0, topics="t")["member_epoch"]
    written = len(world.driver.log)
    assert world.beat("a", epoch)["assignment"] is None
    assert len(world.driver.log) == written
    assert world.beat("a", epoch, topics="t")["assignment"] is not None


def test_members_share_the_partitions_and_a_partition_may_have_several():
    world = ShareWorld(t=2)
    members = [world.member(name, "t").beat() for name in "abc"]
    world.driver.pass_ms(INTERVAL_MS)
    for member in members:
        member.beat()
    assert sorted(len(member.partitions("t")) for member in members) == [1, 1, 2]
    assert set().union(*(member.partitions("t") for member in members)) == {0, 1}
    assert {member.epoch for member in members} == {world.share_group().assignment_epoch}


def test_a_second_assignment_waits_for_the_interval():
    world = ShareWorld(t=2)
    first, second = world.member("a", "t").beat(), world.member("b", "t").beat()
    assert (first.partitions("t"), second.partitions("t")) == ({0, 1}, set())
    assert world.beat("b", second.epoch)["heartbeat_interval"].total_seconds() == 1
    world.driver.pass_ms(INTERVAL_MS)
    second.beat(), first.beat()
    assert (first.partitions("t"), second.partitions("t")) == ({0}, {1})


def test_the_interval_of_the_group_is_the_one_that_counts():
    world = ShareWorld(t=2)
    world.image = world.image.with_group_config(GROUP, {"share.assignment.interval.ms": "0"})
    world.member("a", "t").beat()
    assert len(world.member("b", "t").beat().partitions("t")) == 1


def test_a_member_that_leaves_makes_room():
    world = ShareWorld(t=2)
    world.image = world.image.with_group_config(GROUP, {"share.assignment.interval.ms": "0"})
    first, second = world.member("a", "t").beat(), world.member("b", "t").beat()
    second.leave()
    assert first.beat().partitions("t") == {0, 1}
    first.leave()
    group = world.share_group()
    assert (group.state_name, group.assignment_epoch) == ("Empty", group.group_epoch)


def test_the_last_member_that_leaves_does_not_make_the_next_one_wait():
    world = ShareWorld(t=2)
    member = world.member("a", "t").beat()
    member.leave()
    assert world.member("b", "t").beat().partitions("t") == {0, 1}


def test_a_member_whose_session_ends_is_fenced():
    world = ShareWorld(t=1)
    fenced: list[tuple[str, str]] = []
    world.driver.shard.share_member_fenced = lambda *member: fenced.append(member)
    member, other = world.member("a", "t").beat(), world.member("b", "t").beat()
    # Whoever leaves closes its session itself, after its last acknowledgements.
    world.member("c", "t").beat().leave()
    world.driver.pass_ms(SESSION_MS - 1)
    assert len(world.share_group().members) == 2
    other.beat()
    world.driver.pass_ms(1)
    assert list(world.share_group().members) == ["b"]
    assert fenced == [(GROUP, "a")]
    assert code_of(lambda: world.beat("a", member.epoch)) is ErrorCode.unknown_member_id
    assert member.beat().epoch > 0


def test_a_member_that_sends_a_heartbeat_while_its_fencing_cannot_be_written_stays():
    world = ShareWorld(t=1)
    member = world.member("a", "t").beat()
    world.driver.refuse_writes = KafkaError(ErrorCode.coordinator_not_available)
    world.driver.pass_ms(SESSION_MS)
    world.driver.refuse_writes = None
    member.beat()
    world.driver.pass_ms(SESSION_MS - 1)
    assert list(world.share_group().members) == ["a"]


def test_a_restart_keeps_members_and_epochs_and_gives_full_sessions():
    world = ShareWorld(t=3)
    member = world.member("a", "t").beat()
    before = logged_state(world.share_group())
    world.driver.pass_ms(SESSION_MS - 1)
    world.driver.restart()
    assert logged_state(world.share_group()) == before
    world.driver.pass_ms(SESSION_MS - 1)
    assert member.beat().epoch == member.epoch
    assert member.partitions("t") == {0, 1, 2}
    world.driver.pass_ms(SESSION_MS)
    assert world.share_group().is_empty


def test_a_lost_response_is_made_up_for():
    world = ShareWorld(t=2)
    world.image = world.image.with_group_config(GROUP, {"share.assignment.interval.ms": "0"})
    member = world.member("a", "t").beat()
    world.member("b", "t").beat()
    lost = world.beat("a", member.epoch)
    assert lost["member_epoch"] > member.epoch
    again = world.beat("a", member.epoch, topics="t")
    assert again["member_epoch"] == lost["member_epoch"]
    assert len(again["assignment"]["topic_partitions"][0]["partitions"]) == 1


def test_a_new_subscription_takes_effect_at_once():
    world = ShareWorld(t=1, u=1)
    member = world.member("a", "t").beat()
    member.topics = "u"
    member.beat(everything=True)
    assert member.partitions("t") == set()
    world.driver.pass_ms(INTERVAL_MS)
    assert member.beat().partitions("u") == {0}


def test_subscriptions_to_different_topics():
    world = ShareWorld(t=2, u=2)
    world.image = world.image.with_group_config(GROUP, {"share.assignment.interval.ms": "0"})
    first, second = world.member("a", "t").beat(), world.member("b", "t u").beat()
    first.beat()
    assert len(first.partitions("t")) == len(second.partitions("t")) == 1
    assert (first.partitions("u"), second.partitions("u")) == (set(), {0, 1})


def test_a_topic_that_does_not_exist_yet_is_assigned_when_it_does():
    world = ShareWorld()
    member = world.member("a", "t").beat()
    assert (member.epoch, member.assigned) == (1, {})
    world.create("t", 2)
    assert member.beat().partitions("t") == {0, 1}


@pytest.mark.parametrize(
    ("epoch", "said"),
    [
        (0, {}),
        (0, {"topics": ""}),
        (-2, {}),
        (1, {"rack_id": " "}),
        (1, {"rack_id": "r" * 2_000}),
    ],
)
def test_a_request_with_missing_or_wrong_fields_is_invalid(epoch, said):
    assert code_of(lambda: ShareWorld(t=1).beat("a", epoch, **said)) is ErrorCode.invalid_request


def test_a_member_makes_its_own_id():
    world = ShareWorld(t=1)
    assert code_of(lambda: world.beat("", 0, topics="t")) is ErrorCode.invalid_request
    assert code_of(lambda: world.beat("m" * 2_000, 0, topics="t")) is ErrorCode.invalid_request
    assert code_of(lambda: world.beat("a", 0, "", topics="t")) is ErrorCode.invalid_request


def test_members_and_groups_that_are_not_known_and_epochs_that_are_not_right():
    world = ShareWorld(t=1)
    assert code_of(lambda: world.beat("a", 1)) is ErrorCode.group_id_not_found
    assert code_of(lambda: world.beat("a", -1)) is ErrorCode.group_id_not_found
    epoch = world.beat("a", 0, topics="t")["member_epoch"]
    assert code_of(lambda: world.beat("b", 1)) is ErrorCode.unknown_member_id
    assert code_of(lambda: world.beat("b", -1)) is ErrorCode.unknown_member_id
    assert code_of(lambda: world.beat("a", epoch + 1)) is ErrorCode.fenced_member_epoch
    assert world.beat("a", 0, topics="t")["member_epoch"] == epoch


def test_a_group_has_no_more_members_than_its_limit():
    world = ShareWorld(t=1)
    world.set_option("group.share.max.size", "2")
    first, _ = world.member("a", "t").beat(), world.member("b", "t").beat()
    assert code_of(lambda: world.member("c", "t").beat()) is ErrorCode.group_max_size_reached
    first.beat(everything=True)


def test_the_metadata_of_a_group_is_limited():
    world = ShareWorld(t=1)
    world.set_option("skep.max.group.metadata.bytes", "1000")
    world.member("a", "t").beat()
    many = " ".join(f"topic-{number}" for number in range(100))
    assert code_of(lambda: world.member("b", many).beat()) is ErrorCode.group_max_size_reached


def test_what_a_share_group_takes_is_about_what_is_counted():
    """The count is what skep.max.groups.memory.bytes limits; so 100,000 groups are limited too."""
    world = ShareWorld(t=1)
    world.beat("first", 0, "first", topics="t")
    counted, number = world.driver.shard.memory.bytes, 150
    tracemalloc.start()
    try:
        for one in range(number):
            world.beat(f"00000000-0000-4000-8000-{one:012d}", 0, f"group-{one}", topics="t")
        # The driver keeps the log and the share states, which the shard does not.
        world.driver.log.clear()
        world.persister.states.clear()
        world.persister.calls.clear()
        gc.collect()
        used, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    counted = (world.driver.shard.memory.bytes - counted) // number
    assert counted > 3_000
    assert used // number < 2 * counted


def test_there_are_no_more_groups_than_the_limit():
    world = ShareWorld(t=1)
    world.set_option("skep.max.groups", "1")
    world.member("a", "t").beat()
    assert code_of(lambda: world.beat("a", 0, "another", topics="t")) is ErrorCode.policy_violation


# Groups of other kinds.


def test_a_group_of_another_kind_has_no_share_members():
    world = ShareWorld(t=1)
    joining = HeartbeatRequest("c", "m", 0, rebalance_timeout_ms=1, topic_names=frozenset({"t"}), owned={})
    world.driver.submit(lambda shard: consumer_heartbeat.heartbeat(shard, joining))
    offset = WantedOffset("t", 0, 1, -1, "")
    world.driver.submit(lambda shard: offset_operations.commit(shard, "o", Committer("", None, -1), [offset], 9))
    assert code_of(lambda: world.beat("a", 0, "c", topics="t")) is ErrorCode.group_id_not_found
    assert code_of(lambda: world.beat("a", -1, "c")) is ErrorCode.group_id_not_found
    assert code_of(lambda: world.beat("a", 0, "o", topics="t")) is ErrorCode.group_id_not_found


def test_a_share_group_has_no_consumers_and_no_committed_offsets():
    world = ShareWorld(t=1)
    world.member("a", "t").beat()
    submit = world.driver.submit
    joining = HeartbeatRequest(GROUP, "m", 0, rebalance_timeout_ms=1, topic_names=frozenset({"t"}), owned={})
    assert code_of(lambda: submit(lambda shard: consumer_heartbeat.heartbeat(shard, joining))) in (
        ErrorCode.group_id_not_found,
    )
    offset, nobody = WantedOffset("t", 0, 1, -1, ""), Committer("", None, -1)
    for operation in (
        lambda shard: offset_operations.commit(shard, GROUP, nobody, [offset], 9),
        lambda shard: offset_operations.fetch(shard, GROUP, None, -1, None, require_stable=False),
        lambda shard: offset_operations.delete(shard, GROUP, [("t", 0)]),
    ):
        assert code_of(lambda operation=operation: submit(operation)) is ErrorCode.group_id_not_found


def test_the_classic_protocol_is_refused_in_a_share_group():
    world = ShareWorld(t=1)
    world.member("a", "t").beat()
    submit = world.driver.submit
    request = JoinRequest(GROUP, "", None, "c", "/h", 10_000, 10_000, "consumer", [("range", b"")], None, 9)
    assert code_of(lambda: submit(lambda shard: join(shard, request, None))) is ErrorCode.inconsistent_group_protocol
    assert list(world.share_group().members) == ["a"]
    unknown = ErrorCode.unknown_member_id
    assert code_of(lambda: submit(lambda shard: heartbeat(shard, GROUP, "a", None, 1))) is unknown
    (left,) = submit(lambda shard: leave(shard, GROUP, [Leaving("a", None, None)]))
    assert left["error_code"] is unknown
    syncing = SyncRequest(GROUP, 1, "a", None, None, None, {})
    assert code_of(lambda: submit(lambda shard: sync(shard, syncing, None))) is unknown


def test_a_share_group_without_members_does_not_expire():
    world = ShareWorld(t=1)
    world.member("a", "t").beat().leave()
    world.driver.pass_ms(30 * 24 * 3_600_000)
    world.driver.submit(expire)
    assert world.share_group().is_empty


# Large groups.


def test_a_large_assignment_is_made_in_slices():
    world = ShareWorld(t=12_000)
    member = world.member("a", "t").beat()
    for _ in range(30):
        world.driver.pass_ms(INTERVAL_MS)
        member.beat()
    assert len(member.partitions("t")) == 12_000


class ShareGroupMachine(RuleBasedStateMachine):
    """Members come, go, fall silent and subscribe; topics appear, grow and go; offsets and the group are deleted; the
    coordinator moves; the persister fails now and then."""

    def __init__(self):
        super().__init__()
        self.world = ShareWorld(t=2)
        self.members = {}

    @rule(name=st.sampled_from("abcde"), topics=st.sampled_from(["t", "u", "t u", "v"]))
    def join_or_subscribe(self, name, topics):
        member = self.members.setdefault(name, self.world.member(name, topics))
        member.topics = topics
        member.beat(everything=True)

    @precondition(lambda self: self.members)
    @rule(data=st.data())
    def beat(self, data):
        self.members[data.draw(st.sampled_from(sorted(self.members)))].beat()

    @precondition(lambda self: self.members)
    @rule(data=st.data())
    def leave(self, data):
        member = self.members.pop(data.draw(st.sampled_from(sorted(self.members))))
        group = self.world.driver.shard.groups.get(GROUP)
        if group is not None and member.member_id in group.members:
            member.leave()

    @precondition(lambda self: self.members)
    @rule(data=st.data())
    def fall_silent(self, data):
        del self.members[data.draw(st.sampled_from(sorted(self.members)))]

    @rule(ms=st.sampled_from([1, 1_000, 30_000]))
    def wait(self, ms):
        self.world.driver.pass_ms(ms)

    @rule(name=st.sampled_from("tuv"), count=st.integers(1, 4))
    def create_or_grow(self, name, count):
        topic = self.world.image.topics.get(name)
        if topic is None:
            self.world.create(name, count)
        elif len(topic.partitions) < count:
            self.world.grow(name, count)

    @rule(name=st.sampled_from("tuv"))
    def delete(self, name):
        if (topic := self.world.image.topics.get(name)) is not None:
            self.world.delete(name)

            async def delete():
                self.world.share.delete_state_of_topics(frozenset({topic.topic_id}))
                self.world.driver.pass_ms(0)

            self.world.run(delete())

    @rule(name=st.sampled_from("tuv"), partitions=st.sets(st.integers(0, 3)), offset=st.integers(0, 9))
    def alter(self, name, partitions, offset):
        with contextlib.suppress(KafkaError):
            starts = [(name, partition, offset) for partition in sorted(partitions)]
            altered = self.world.run(self.world.share.alter_offsets(GROUP, starts))
            for key, error in altered.items():
                assert error is not None or self.world.persister.states[key].start_offset == offset

    @rule(name=st.sampled_from("tuv"))
    def delete_offsets(self, name):
        if (topic := self.world.image.topics.get(name)) is not None:
            with contextlib.suppress(KafkaError):
                self.world.run(self.world.share.delete_offsets(GROUP, {topic.topic_id}))
                assert all(key.topic_id != topic.topic_id for key in self.world.persister.states)

    @rule()
    def delete_group(self):
        with contextlib.suppress(KafkaError):
            self.world.run(self.world.share.delete_group(GROUP))
            assert GROUP not in self.world.driver.shard.groups
            assert not self.world.persister.states

    @rule(failing=st.sets(st.integers(0, 3)))
    def fail(self, failing):
        # Not deletions: they would be tried again in real time.
        self.world.persister.failures = {}
        self.world.persister.fail_to_initialize = dict.fromkeys(failing, ErrorCode.coordinator_not_available)

    @rule()
    def restart(self):
        self.world.driver.restart()

    @invariant()
    def replay_gives_the_same(self):
        replayed = self.world.driver.replayed()
        shard = self.world.driver.shard
        assert replayed.groups.keys() == shard.groups.keys()
        for group_id, group in shard.groups.items():
            assert logged_state(replayed.groups[group_id]) == logged_state(group)

    @invariant()
    def only_partitions_with_state_are_assigned(self):
        for group in self.world.driver.shard.groups.values():
            with_state = {(key.topic_id, key.partition) for key in self.world.persister.states}
            existing = {topic.topic_id for topic in self.world.image.topics.values()}
            for topic, numbers in group.states.initialized.items():
                assert {(topic, number) for number in numbers} <= with_state or topic not in existing

    def teardown(self):
        """When nothing happens any more, every partition of a subscribed topic has a member, and loads are even."""
        self.world.persister.fail_to_initialize = {}
        for _ in range(4):
            self.world.driver.pass_ms(SESSION_MS // 3)
            for member in self.members.values():
                member.beat()
        if not self.members:
            return
        group = self.world.share_group()
        assert group.members.keys() == self.members.keys()
        for name, topic in self.world.image.topics.items():
            subscribers = [member for member in self.members.values() if name in member.topics.split()]
            covered = set().union(*(member.partitions(name) for member in subscribers))
            assert covered == (set(range(len(topic.partitions))) if subscribers else set())
        for member in self.members.values():
            assert member.epoch == group.group_epoch == group.assignment_epoch
        for key in self.world.persister.states:
            assert key.topic_id in self.world.image.topics_by_id


TestShareGroupMachine = ShareGroupMachine.TestCase
TestShareGroupMachine.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
