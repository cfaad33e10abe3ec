"""What groups need of topics: sums over coordinators, groups that have not begun, offsets of transactions."""

import json
import uuid

from hypothesis import given
from hypothesis import strategies as st

from skep.base.errors import ErrorCode
from skep.base.loop.slicer import run_at_once
from skep.coordination.groups.group_table import GroupTable
from skep.coordination.groups.offsets import offset_operations
from skep.coordination.groups.offsets.offset_operations import Committer, WantedOffset
from skep.coordination.shard import ProducerStamp
from skep.coordination.topic_needs import TopicNeeds, merge_needs, needs_of_groups, needs_of_shares
from tests.unit.coordination.groups.consumer_clients import World
from tests.unit.coordination.groups.share_clients import ShareWorld
from tests.unit.coordination.share.scene import KEY, ORDERS, OTHER, ShareScene

NOBODY = Committer("", None, -1)

group_offsets = st.dictionaries(st.integers(0, 3), st.integers(0, 100))
share_starts = st.lists(st.tuples(st.integers(0, 3), st.integers(-1, 100)), max_size=4)


@given(st.lists(st.tuples(st.lists(group_offsets, max_size=3), share_starts), max_size=4), st.integers(0, 3))
def test_only_what_no_group_needs_can_be_deleted(coordinators, partition):
    total = {"t": TopicNeeds()}
    for groups, shares in coordinators:
        known = TopicNeeds()
        for offsets in groups:
            known.add_group(offsets)
        for number, start in shares:
            known.add_share(number, start)
        merge_needs(total, {"t": TopicNeeds.of_json(json.loads(json.dumps(known.to_json())))})
    groups = [offsets for some, _ in coordinators for offsets in some]
    needed = [offsets.get(partition, -1) for offsets in groups]
    needed += [start for _, shares in coordinators for number, start in shares if number == partition]
    expected = None if not needed or -1 in needed else min(needed)
    assert total["t"].deletable_before(partition) == expected


def commit(world: World, group_id: str, partition: int, offset: int, producer: int | None = None) -> None:
    wanted = [WantedOffset("t", partition, offset, -1, "")]
    if producer is None:
        world.driver.submit(lambda shard: offset_operations.commit(shard, group_id, NOBODY, wanted, 9))
    else:
        stamp = ProducerStamp(producer, 0)
        world.driver.submit(
            lambda shard: offset_operations.commit_transactional(shard, group_id, NOBODY, stamp, wanted, 3)
        )


def needs(world: World, name: str = "t", topic_id: uuid.UUID | None = None) -> TopicNeeds:
    table: GroupTable = world.driver.shard
    return run_at_once(needs_of_groups(table, {name: topic_id or world.topic_id(name)}))[name]


def deletable(world: World, partitions: int = 2) -> list[int | None]:
    found = needs(world)
    return [found.deletable_before(partition) for partition in range(partitions)]


def test_the_slowest_group_decides_and_one_without_an_offset_needs_everything():
    world = World(t=2, u=1)
    assert deletable(world) == [None, None]
    commit(world, "fast", 0, 50)
    assert deletable(world) == [50, None]
    commit(world, "slow", 0, 7)
    assert deletable(world) == [7, None]
    commit(world, "fast", 1, 60)
    assert deletable(world) == [7, None]
    commit(world, "slow", 1, 70)
    assert deletable(world) == [7, 60]


def test_members_that_have_not_committed_yet_hold_everything_and_those_of_other_topics_nothing():
    world = World(t=1, u=1)
    commit(world, "done", 0, 9)
    reader = world.client("a", "u", group_id="new").join()
    assert deletable(world, 1) == [9]
    reader.subscribe("t")
    reader.beat()
    assert deletable(world, 1) == [None]
    reader.leave()
    assert deletable(world, 1) == [9]


def test_an_offset_counts_when_its_transaction_commits():
    world = World(t=1)
    commit(world, "done", 0, 9)
    commit(world, "new", 0, 5, producer=1)
    assert deletable(world, 1) == [None]
    commit(world, "done", 0, 20, producer=2)
    world.driver.end_transaction(ProducerStamp(1, 0), is_committed=True)
    assert deletable(world, 1) == [5]
    world.driver.end_transaction(ProducerStamp(2, 0), is_committed=False)
    commit(world, "new", 0, 30)
    assert deletable(world, 1) == [9]


def test_a_deleted_group_and_a_topic_of_the_same_name():
    world = World(t=1)
    commit(world, "slow", 0, 3)
    commit(world, "fast", 0, 8)
    world.driver.submit(lambda shard: offset_operations.delete_group(shard, "slow"))
    assert deletable(world, 1) == [8]
    assert needs(world, topic_id=uuid.uuid4()).deletable_before(0) is None
    world.driver.shard.deleted_topics.add("t")
    assert deletable(world, 1) == [None]


def test_the_notes_of_dead_letters_need_nothing_unless_somebody_reads_under_that_name():
    world = World(t=2)
    commit(world, "done", 0, 9)
    commit(world, "done", 1, 9)
    commit(world, "skep.dlq.workers", 0, 4)
    assert deletable(world) == [9, 9]
    reader = world.client("a", "t", group_id="skep.dlq.workers").join()
    assert deletable(world) == [4, None]
    reader.leave()
    assert deletable(world) == [9, 9]


def test_a_share_group_without_members_needs_partitions_that_were_added_meanwhile():
    world = ShareWorld(t=1)
    member = world.member("a", "t").beat()
    world.driver.pass_ms(60_000)
    member.beat()
    assert world.share_group().states.initialized
    member.leave()
    world.grow("t", 2)
    commit(world, "other", 0, 9)
    commit(world, "other", 1, 9)
    assert deletable(world)[1] is None


def test_a_share_group_without_the_state_of_all_partitions_holds_everything():
    world = ShareWorld(t=1)
    commit(world, "done", 0, 9)
    world.persister.fail_to_initialize[0] = ErrorCode.coordinator_not_available
    member = world.member("a", "t").beat()
    assert deletable(world, 1) == [None]
    world.persister.fail_to_initialize.clear()
    world.driver.pass_ms(60_000)
    member.beat()
    # From here on its state speaks for it, which another coordinator has.
    assert world.share_group().states.initialized
    assert deletable(world, 1) == [9]


def test_the_states_of_share_groups_say_where_they_start():
    scene = ShareScene()
    scene.initialize(KEY, start_offset=-1)
    scene.initialize(OTHER, start_offset=4)

    def starts() -> list[int | None]:
        found = run_at_once(needs_of_shares(scene.shard, {"orders": ORDERS.topic_id}))["orders"]
        return [found.deletable_before(partition) for partition in range(3)]

    assert starts() == [None, 4, None]
    scene.write(start_offset=10)
    assert starts() == [10, 4, None]
    assert run_at_once(needs_of_shares(scene.shard, {"orders": uuid.uuid4()}))["orders"].deletable_before(0) is None
