"""Groups that change their kind while they have members (KIP-848): upgrade, members of both protocols, downgrade."""

import struct

import pytest

from skep.base.errors import ErrorCode, KafkaError
from skep.coordination.groups import group_coordinator
from skep.coordination.groups.classic.classic_group import ClassicGroup
from skep.coordination.groups.classic.classic_leave import Leaving
from skep.coordination.groups.classic.consumer_protocol import read_assignment, read_subscription, write_assignment
from skep.coordination.groups.consumer.consumer_group import ConsumerGroup
from skep.coordination.groups.offsets import offset_operations
from skep.coordination.groups.offsets.offset_operations import Committer, WantedOffset
from tests.unit.coordination.groups.consumer_clients import GROUP, World, logged_state, settle
from tests.unit.coordination.groups.mixed_clients import Classic, run, subscription


def kind(world):
    return world.driver.shard.groups[GROUP].type_name


def classic_group(world, count=2, **settings):
    members = [Classic(world, "t", **settings).join() for _ in range(count)]
    run(world, *members)
    assert kind(world) == "classic"
    assert sum(len(member.partitions()) for member in members) == 6
    return members


@pytest.fixture
def world():
    return World(t=6)


def test_a_classic_group_becomes_a_consumer_group_and_nobody_stops_working(world):
    members = classic_group(world)
    newcomer = world.client("n", "t").join()
    assert kind(world) == "consumer"
    assert newcomer.partitions("t") == set()
    run(world, *members, newcomer)
    assert {len(member.partitions()) for member in members} == {2}
    assert len(newcomer.partitions("t")) == 2
    assert members[0].partitions() | members[1].partitions() | newcomer.partitions("t") == set(range(6))
    assert world.group().state_name == "Stable"
    assert {member.error for member in members} == {ErrorCode.none}
    again = world.driver.replayed().groups[GROUP]
    assert logged_state(again) == logged_state(world.group())


def test_eager_members_live_in_a_consumer_group_too(world):
    members = classic_group(world, is_eager=True, protocols=("range", "roundrobin"))
    newcomer = world.client("n", "t").join()
    run(world, *members, newcomer)
    assert members[0].partitions() | members[1].partitions() | newcomer.partitions("t") == set(range(6))
    assert {len(member.partitions()) for member in members} == {2}


def test_members_of_the_classic_protocol_join_a_consumer_group(world):
    first = world.client("n", "t").join()
    second = Classic(world, "t").join()
    run(world, first, second)
    assert first.partitions("t") | second.partitions() == set(range(6))
    assert len(second.partitions()) == 3
    assert world.group().members[second.member_id].is_classic


def test_when_the_last_member_of_the_new_protocol_goes_the_group_is_classic_again(world):
    members = classic_group(world)
    newcomer = world.client("n", "t").join()
    run(world, *members, newcomer)
    for member in members:
        member.errors.clear()
    newcomer.leave()
    assert kind(world) == "classic"
    run(world, *members)
    assert {code for member in members for code in member.errors} == {ErrorCode.none, ErrorCode.rebalance_in_progress}
    assert members[0].partitions() | members[1].partitions() == set(range(6))
    assert world.driver.shard.groups[GROUP].state_name == "Stable"
    again = world.driver.replayed().groups
    assert isinstance(again[GROUP], ClassicGroup)
    assert again[GROUP].generation_id == members[0].generation


def test_a_member_of_the_new_protocol_that_dies_leaves_a_classic_group_behind(world):
    members = classic_group(world)
    world.client("n", "t").join()
    run(world, *members, rounds=50)
    assert kind(world) == "classic"
    assert members[0].partitions() | members[1].partitions() == set(range(6))


def test_a_rolling_upgrade_moves_every_member_to_the_new_protocol(world):
    members = classic_group(world)
    new = [world.client("n0", "t").join()]
    run(world, *members, *new)
    members[0].leave()
    new.append(world.client("n1", "t").join())
    run(world, members[1], *new)
    members[1].leave()
    run(world, *new)
    assert new[0].partitions("t") | new[1].partitions("t") == set(range(6))
    assert world.group().classic_count == 0
    assert not world.group().classic_protocol_counts


def test_offsets_stay_when_a_group_changes_its_kind(world):
    members = classic_group(world)
    offset = WantedOffset("t", 0, 7, -1, "note")

    def commit(member_id, epoch, version=9):
        return world.driver.submit(
            lambda shard: offset_operations.commit(shard, GROUP, Committer(member_id, None, epoch), [offset], version)
        )

    commit(members[0].member_id, members[0].generation)
    newcomer = world.client("n", "t").join()
    run(world, *members, newcomer)
    assert world.driver.shard.offsets.of_group(GROUP)[("t", 0)].metadata == "note"
    commit(members[0].member_id, members[0].generation, version=5)
    with pytest.raises(KafkaError) as caught:
        commit(members[0].member_id, members[0].generation - 1)
    assert caught.value.code is ErrorCode.illegal_generation


def test_a_group_in_the_middle_of_a_rebalance_can_be_upgraded(world):
    members = classic_group(world)
    late = Classic(world, "t").join()
    late.step()
    newcomer = world.client("n", "t").join()
    late.step()
    assert late.error is ErrorCode.rebalance_in_progress
    run(world, *members, late, newcomer)
    owned = [*(member.partitions() for member in (*members, late)), newcomer.partitions("t")]
    assert set().union(*owned) == set(range(6))
    assert sum(map(len, owned)) == 6


def test_a_silent_classic_member_leaves_a_consumer_group_after_its_own_session(world):
    members = classic_group(world)
    newcomer = world.client("n", "t").join()
    run(world, *members, newcomer)
    run(world, members[1], newcomer, rounds=31)
    assert members[0].member_id not in world.group().members
    assert members[1].member_id in world.group().members


def test_a_classic_member_that_does_not_join_again_in_time_is_fenced(world):
    members = classic_group(world, count=1)
    newcomer = world.client("n", "t").join()
    members[0].join = lambda: members[0]  # it goes on with heartbeats only
    run(world, *members, newcomer, rounds=59)
    assert members[0].member_id in world.group().members
    run(world, *members, newcomer, rounds=3)
    assert set(world.group().members) == {"n"}


def test_an_administrator_removes_members_of_both_protocols(world):
    members = classic_group(world, count=1)
    newcomer = world.client("n", "t", instance_id="i").join()
    run(world, *members, newcomer)
    responses = world.driver.submit(
        lambda shard: group_coordinator.leave(
            shard, GROUP, [Leaving("", "i", None), Leaving("nobody", None, None), Leaving("x", "j", None)]
        )
    )
    assert [response["error_code"] for response in responses] == [
        ErrorCode.none,
        ErrorCode.unknown_member_id,
        ErrorCode.unknown_member_id,
    ]
    assert kind(world) == "classic"


def test_a_static_member_takes_its_place_over_from_one_protocol_to_the_other(world):
    members = [Classic(world, "t", instance_id=name).join() for name in ("i", "j")]
    run(world, *members)
    had = members[0].partitions()
    static = world.client("n", "t", instance_id="i").join()
    run(world, members[1], static)
    assert set(world.group().members) == {"n", members[1].member_id}
    assert static.partitions("t") == had

    again = Classic(world, "t", instance_id="i").join()
    assert kind(world) == "classic"
    assert world.driver.shard.groups[GROUP].state_name == "Stable"
    run(world, again, members[1], rounds=5)
    assert again.partitions() == had
    assert members[1].partitions() == set(range(6)) - had


def test_a_static_member_that_comes_back_with_other_topics_makes_the_classic_group_rebalance(world):
    world.create("u", 2)
    members = [Classic(world, "t", instance_id="i").join(), Classic(world, "t", "u", instance_id="j").join()]
    run(world, *members)
    static = world.client("n", "t", instance_id="i").join()
    run(world, members[1], static)
    again = Classic(world, "t", "u", instance_id="i").join()
    assert kind(world) == "classic"
    assert world.driver.shard.groups[GROUP].state_name == "PreparingRebalance"
    run(world, again, members[1])
    assert again.partitions("u") | members[1].partitions("u") == {0, 1}


@pytest.mark.parametrize(
    ("option", "text"), [("group.consumer.migration.policy", "downgrade"), ("group.consumer.max.size", "1")]
)
def test_an_upgrade_that_may_not_be_is_refused(world, option, text):
    classic_group(world)
    world.set_option(option, text)
    with pytest.raises(KafkaError) as caught:
        world.client("n", "t").join()
    assert caught.value.code is ErrorCode.group_id_not_found
    assert kind(world) == "classic"


def with_user_data(world, protocol):
    member = Classic(world, "t", protocols=(protocol,))
    member._assign = lambda ids: {each: write_assignment(3, {})[:-4] + b"\x00\x00\x00\x01x" for each in ids}
    member.join()
    run(world, member)


def test_a_custom_assignor_whose_data_would_be_lost_is_not_upgraded(world):
    with_user_data(world, "my-own")
    with pytest.raises(KafkaError) as caught:
        world.client("n", "t").join()
    assert caught.value.code is ErrorCode.group_id_not_found


def test_the_data_of_an_assignor_that_does_not_need_it_is_dropped(world):
    with_user_data(world, "cooperative-sticky")
    world.client("n", "t").join()
    assert kind(world) == "consumer"


def test_without_permission_to_downgrade_the_group_stays_a_consumer_group(world):
    members = classic_group(world)
    world.set_option("group.consumer.migration.policy", "upgrade")
    newcomer = world.client("n", "t").join()
    run(world, *members, newcomer)
    newcomer.leave()
    run(world, *members)
    assert kind(world) == "consumer"
    assert members[0].partitions() | members[1].partitions() == set(range(6))


def test_with_migration_disabled_a_classic_member_is_not_let_into_a_consumer_group(world):
    world.set_option("group.consumer.migration.policy", "disabled")
    world.client("n", "t").join()
    member = Classic(world, "t").join()
    member.step()
    assert member.error is ErrorCode.inconsistent_group_protocol


def test_a_member_whose_protocols_nobody_shares_is_not_let_in(world):
    first = world.client("n", "t").join()
    second = Classic(world, "t").join()
    run(world, first, second)
    stranger = Classic(world, "t", protocols=("range",)).join()
    stranger.step()
    assert stranger.error is ErrorCode.inconsistent_group_protocol


def test_an_empty_group_of_one_kind_turns_into_one_of_the_other_at_once(world):
    first = world.client("n", "t").join()
    first.leave()
    members = classic_group(world)
    assert ConsumerGroup not in map(type, world.driver.replayed().groups.values())
    for member in members:
        member.leave()
    assert kind(world) == "classic"
    assert world.client("n2", "t").join().partitions("t") == set(range(6))
    assert kind(world) == "consumer"
    assert isinstance(world.driver.replayed().groups[GROUP], ConsumerGroup)


def test_a_member_id_that_outlives_the_last_member_does_not_make_a_consumer_group_of_classic_members(world):
    first = world.client("n", "t").join()
    second = Classic(world, "t").join()
    assert second._waiter.reply["error_code"] is ErrorCode.member_id_required
    first.leave()
    second.step()
    second.step()
    assert second.errors == [ErrorCode.member_id_required, ErrorCode.unknown_member_id]
    run(world, second)
    assert kind(world) == "classic"
    assert second.partitions() == set(range(6))
    assert world.driver.shard.groups[GROUP].state_name == "Stable"


def test_an_empty_consumer_group_stays_when_its_successor_cannot_be_written(world):
    world.client("n", "t").join().leave()
    world.driver.refuse_writes = KafkaError(ErrorCode.coordinator_not_available)
    member = Classic(world, "t").join()
    member.step()
    assert member.error is ErrorCode.coordinator_not_available
    assert kind(world) == "consumer"


def test_a_failed_upgrade_leaves_the_classic_group_as_it_was(world):
    members = classic_group(world)
    world.driver.refuse_writes = KafkaError(ErrorCode.coordinator_not_available)
    with pytest.raises(KafkaError):
        world.client("n", "t").join()
    world.driver.refuse_writes = None
    run(world, *members, rounds=40)
    assert kind(world) == "classic"
    assert {member.error for member in members} == {ErrorCode.none}


def test_a_broker_that_restarts_during_the_migration_goes_on_with_it(world):
    members = classic_group(world)
    newcomer = world.client("n", "t").join()
    run(world, *members, newcomer, rounds=2)
    world.driver.restart()
    run(world, *members, newcomer)
    owned = [*(member.partitions() for member in members), newcomer.partitions("t")]
    assert set().union(*owned) == set(range(6))
    assert sum(map(len, owned)) == 6
    settle(newcomer, rounds=1)


def test_the_embedded_protocol_is_read_in_every_version():
    for version in range(4):
        data = write_assignment(version, {"t": {2, 1}})
        assert data[:2] == struct.pack(">h", version)
        assert read_assignment(data).partitions == {"t": frozenset({1, 2})}
    full = subscription(["t"], {"t": [3]})
    assert read_subscription(full).owned == {"t": frozenset({3})}
    assert read_subscription(b"\x00\x09" + full[2:]).version == 3
    for bad in (b"", b"\x00", b"\xff\xff", b"\x00\x03", b"\x00\x00\x7f\xff\xff\xff", full[:-1]):
        with pytest.raises(ValueError, match="subscription"):
            read_subscription(bad)


def test_classic_members_of_a_consumer_group_notice_partitions_that_are_added(world):
    members = classic_group(world)
    world.set_option("group.consumer.migration.policy", "upgrade")
    newcomer = world.client("n", "t").join()
    run(world, *members, newcomer)
    newcomer.leave()
    world.grow("t", 9)
    run(world, *members)
    assert members[0].partitions() | members[1].partitions() == set(range(9))


def test_a_member_of_the_new_protocol_that_was_fenced_comes_back_to_a_group_that_is_classic_by_now(world):
    members = classic_group(world)
    newcomer = world.client("n", "t").join()
    run(world, *members, newcomer)
    run(world, *members, rounds=50)
    assert kind(world) == "classic"
    with pytest.raises(KafkaError) as caught:
        world.beat("n", newcomer.epoch)
    assert caught.value.code is ErrorCode.unknown_member_id
    run(world, *members, newcomer)
    assert kind(world) == "consumer"
    assert len(newcomer.partitions("t")) == 2


def test_timers_of_the_consumer_group_do_not_outlive_it(world):
    members = classic_group(world)
    newcomer = world.client("n", "t").join()
    run(world, *members, newcomer)
    other = world.client("o", "t").join()
    world.driver.pass_ms(1_000)
    for member in members:
        member.join = lambda: None
        member.step()
    kinds = ("session", "join")
    assert all((kind, GROUP, member.member_id) in world.driver.timers for member in members for kind in kinds)
    newcomer.leave()
    other.leave()
    assert kind(world) == "classic"
    assert not any((kind, GROUP, member.member_id) in world.driver.timers for member in members for kind in kinds)
