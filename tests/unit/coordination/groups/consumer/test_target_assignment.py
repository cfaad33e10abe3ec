"""The target assignment of a large group, made and written in many operations while the group goes on."""

import datetime

import pytest

from skep.base.errors import ErrorCode, KafkaError
from skep.coordination.groups.consumer import target_assignment
from tests.unit.coordination.groups.consumer_clients import Client, World, check_owners, settle

PARTITIONS = 12


@pytest.fixture(autouse=True)
def little_at_a_time(monkeypatch):
    monkeypatch.setattr(target_assignment, "SMALL_COST", PARTITIONS)
    monkeypatch.setattr(target_assignment, "STEPS_AT_ONCE", 1)
    monkeypatch.setattr(target_assignment, "MEMBERS_AT_ONCE", 1)


def carry_out(world: World, until: str | None = None) -> int:
    """Carries out what is due, one operation after the other; how many there were. ``until``: this target is made."""
    operations = 0
    while world.group().assigning is not None and (until is None or until not in world.group().targets):
        world.driver.submit(next(world.driver.timers.take_due()))
        operations += 1
    return operations


def come_to_rest(world: World, *clients: Client) -> list[int]:
    for _ in range(6):
        world.driver.pass_ms(1)
        settle(*clients, rounds=2)
    check_owners(world.group())
    assert world.group().state_name == "Stable"
    return [len(client.partitions("t")) for client in clients]


def test_members_are_told_to_come_back_soon_and_get_their_partitions_when_it_is_made():
    world = World(t=PARTITIONS)
    first, second = world.client("a", "t"), world.client("b", "t")
    first.join()
    response = second.beat()
    assert response is not None
    assert response["heartbeat_interval"] == datetime.timedelta(seconds=1)
    assert world.group().state_name == "Assigning"
    assert world.group().assignment_epoch == 0
    # For the first member alone: the assignor pauses five times and ends, its target and the epoch are written.
    assert carry_out(world) == 8
    assert world.group().assignment_epoch == 1
    response = first.beat()
    assert response is not None
    assert response["heartbeat_interval"] == datetime.timedelta(seconds=1)
    carry_out(world)
    assert come_to_rest(world, first, second) == [6, 6]
    response = first.beat()
    assert response is not None
    assert response["heartbeat_interval"] == datetime.timedelta(seconds=5)


def test_a_member_that_leaves_or_comes_meanwhile_has_its_part_in_the_next_one():
    world = World(t=PARTITIONS)
    first, second, third = (world.client(name, "t") for name in "abc")
    first.join(), second.join()
    carry_out(world, until="a")
    first.leave()
    third.join()
    assert come_to_rest(world, second, third) == [6, 6]
    assert set(world.group().targets) == {"b", "c"}


def test_a_static_member_that_is_replaced_meanwhile_has_its_part():
    world = World(t=PARTITIONS)
    first, second = world.client("a", "t", instance_id="i"), world.client("b", "t")
    first.join(), second.join()
    come_to_rest(world, first, second)
    third = world.client("c", "t").join()
    epoch, assigning = world.group().group_epoch, world.group().assigning
    assert assigning is not None
    while assigning.unwritten is None:
        world.driver.submit(next(world.driver.timers.take_due()))
    first.leave(for_a_while=True)
    successor = world.client("a2", "t", instance_id="i").join()
    assert world.group().group_epoch == epoch
    assert come_to_rest(world, second, third, successor) == [4, 4, 4]


def test_a_broker_that_fails_in_between_makes_it_anew():
    world = World(t=PARTITIONS)
    first, second = world.client("a", "t").join(), world.client("b", "t").join()
    carry_out(world, until="a")
    world.driver.restart()
    assert world.group().assignment_epoch < world.group().group_epoch
    assert come_to_rest(world, first, second) == [6, 6]


def test_what_cannot_be_written_is_written_later():
    world = World(t=PARTITIONS)
    first, second = world.client("a", "t").join(), world.client("b", "t").join()
    world.driver.refuse_writes = KafkaError(ErrorCode.coordinator_not_available)
    world.driver.pass_ms(2_000)
    assert not world.group().targets
    world.driver.refuse_writes = None
    world.driver.pass_ms(1_000)
    assert world.group().assigning is None
    assert world.group().targets
    assert come_to_rest(world, first, second) == [6, 6]


def test_a_group_that_empties_meanwhile_is_left_alone():
    world = World(t=PARTITIONS)
    first = world.client("a", "t").join()
    first.leave()
    world.driver.pass_ms(1)
    assert world.group().is_empty
    assert world.group().assigning is None
    assert not world.group().targets


def test_one_member_of_many_partitions_is_assigned_at_once():
    world = World(t=PARTITIONS)
    target_assignment.MEMBER_COST, before = 0, target_assignment.MEMBER_COST
    try:
        client = world.client("a", "t").join()
    finally:
        target_assignment.MEMBER_COST = before
    assert len(client.partitions("t")) == PARTITIONS
