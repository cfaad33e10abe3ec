"""Consumer groups (KIP-848): what members subscribe to, the assignment that follows, and what the log keeps of it."""

import dataclasses

import pytest

from skep.base.errors import ErrorCode, KafkaError
from skep.coordination.groups.assignors import uniform
from skep.coordination.groups.consumer import group_change, modern_change
from skep.coordination.groups.consumer.consumer_member import MemberState
from tests.unit.coordination.groups.consumer_clients import (
    GROUP,
    JOINING,
    SESSION_MS,
    World,
    check_owners,
    logged_state,
    settle,
)


def test_a_member_that_subscribes_to_nothing_is_a_member_all_the_same():
    world = World(t=1)
    client = world.client("a").join()
    assert client.epoch == 1
    assert not client.owned
    assert world.group().state_name == "Stable"


def test_topics_that_come_grow_and_go_are_noticed_at_the_next_heartbeat():
    world = World()
    client = world.client("a", "t", "u").join()
    assert client.epoch == 1
    assert not client.owned
    world.create("t", 1)
    world.create("unrelated", 1)
    client.beat()
    assert client.partitions("t") == {0}
    assert client.epoch == 2
    world.create("another", 1)
    client.beat()
    assert client.epoch == 2
    world.grow("t", 3)
    client.beat()
    assert client.partitions("t") == {0, 1, 2}
    world.delete("t")
    settle(client, rounds=3)
    assert not client.owned
    assert not world.group().owners
    world.create("t", 2)
    client.beat()
    assert client.partitions("t") == {0, 1}


def test_topics_that_changed_while_the_broker_was_down_are_noticed():
    world = World(t=1)
    client = world.client("a", "t").join()
    world.grow("t", 2)
    world.driver.restart()
    client.beat()
    assert client.partitions("t") == {0, 1}
    epoch = client.epoch
    world.driver.restart()
    settle(client, rounds=2)
    assert client.epoch == epoch


def test_a_changed_subscription_is_a_new_assignment():
    world = World(t=1, u=1)
    client = world.client("a", "t").join()
    client.subscribe("u")
    settle(client, rounds=3)
    assert client.owned == {world.topic_id("u"): frozenset({0})}
    client.subscribe()
    settle(client, rounds=3)
    assert not client.owned


def test_a_member_that_has_yet_to_revoke_gives_up_what_it_no_longer_wants_at_once():
    world = World(t=2, u=1)
    first = world.client("a", "t", "u").join()
    first.is_slow = True
    second = world.client("b", "t").join()
    first.beat()
    first.subscribe("t")
    first.beat()
    member = world.group().members["a"]
    assert world.topic_id("u") in member.pending_revocation
    assert member.state is MemberState.UNREVOKED_PARTITIONS
    first.let_go()
    settle(first, second)
    assert first.partitions("t") | second.partitions("t") == {0, 1}
    assert world.group().state_name == "Stable"


def test_the_assignor_that_most_members_name_is_used():
    world = World(t=3, u=3)
    clients = [world.client(name, "t", "u", assignor="range").join() for name in "ab"]
    settle(*clients)
    assert clients[0].partitions("t") == clients[0].partitions("u") == {0, 1}
    assert clients[1].partitions("t") == clients[1].partitions("u") == {2}
    epoch = world.group().group_epoch
    clients[0].assignor = clients[1].assignor = "uniform"
    for client in clients:
        client.subscribe("t", "u")
    settle(*clients)
    assert world.group().group_epoch > epoch
    assert {sum(map(len, client.owned.values())) for client in clients} == {3}


def test_an_expression_finds_the_topics_of_now_and_of_later():
    world = World(**{"orders-eu": 1, "orders-us": 1, "payments": 1, "__consumer_offsets": 50})
    client = world.client("a", regex="^orders-.*").join()
    assert set(client.owned) == {world.topic_id("orders-eu"), world.topic_id("orders-us")}
    world.create("orders-jp", 2)
    client.beat()
    assert client.partitions("orders-jp") == {0, 1}
    world.driver.restart()
    world.delete("orders-eu")
    world.create("orders-cn", 1)
    settle(client, rounds=3)
    assert set(client.owned) == {world.topic_id(f"orders-{name}") for name in ("us", "jp", "cn")}
    everything = world.client("b", regex=".*", group_id="other").join()
    assert world.topic_id("__consumer_offsets") not in everything.owned
    assert len(everything.owned) == 4


def test_an_expression_that_nobody_has_any_more_is_forgotten():
    world = World(t=1, u=1)
    first = world.client("a", regex="t").join()
    second = world.client("b", regex="u").join()
    settle(first, second)
    second.regex = "[tu]"
    second.subscribe()
    settle(first, second)
    assert set(world.group().regexes) == {"t", "[tu]"}
    first.leave()
    assert set(world.group().regexes) == {"[tu]"}
    settle(second)
    assert set(second.owned) == {world.topic_id("t"), world.topic_id("u")}
    second.leave()
    assert not world.group().regexes
    assert not world.group().regex_counts


def test_a_group_whose_assignment_takes_long_is_assigned_less_often(monkeypatch):
    world = World(t=4)

    def slowly(subscribers, counts):
        world.driver.clock.advance_ms(10)
        return (yield from uniform.assign(subscribers, counts))

    monkeypatch.setitem(group_change.ASSIGNORS, "uniform", slowly)
    first = world.client("a", "t").join()
    second = world.client("b", "t").join()
    assert second.epoch == 1
    assert not second.owned
    assert world.group().state_name == "Assigning"
    world.driver.pass_ms(10 * modern_change.ASSIGNMENT_PAUSE)
    settle(first, second, rounds=3)
    assert first.partitions("t") == {0, 1}
    assert second.partitions("t") == {2, 3}


# The log.


def test_when_records_cannot_be_written_nothing_has_happened():
    world = World(t=2)
    first = world.client("a", "t").join()
    before = logged_state(world.group())
    world.driver.refuse_writes = KafkaError(ErrorCode.coordinator_not_available)
    second = world.client("b", "t")
    with pytest.raises(KafkaError):
        second.beat()
    with pytest.raises(KafkaError):
        first.leave()
    assert logged_state(world.group()) == before
    world.driver.refuse_writes = None
    first.beat()
    second.join()
    settle(first, second)
    assert first.partitions("t")
    assert second.partitions("t")


def test_a_replay_gives_the_same_group():
    world = World(t=5, u=3)
    clients = [world.client("a", "t"), world.client("b", "u", "t"), world.client("c", regex="u", instance_id="i")]
    settle(*clients)
    clients[0].leave()
    clients[2].leave(for_a_while=True)
    clients[1].beat()
    again = world.driver.replayed().groups[GROUP]
    assert logged_state(again) == logged_state(world.group())
    check_owners(again)


def test_after_a_restart_members_have_a_whole_session_and_time_to_revoke():
    world = World(t=2)
    first = world.client("a", "t", rebalance_timeout_ms=10_000).join()
    first.is_slow = True
    world.client("b", "t").join()
    first.beat()
    world.driver.pass_ms(9_000)
    world.driver.restart()
    world.driver.pass_ms(9_999)
    assert set(world.group().members) == {"a", "b"}
    world.driver.pass_ms(1)
    assert set(world.group().members) == {"b"}
    world.driver.pass_ms(SESSION_MS)
    assert world.group().is_empty


def test_compaction_may_leave_the_records_of_a_member_in_any_order():
    world = World(t=4)
    clients = [world.client("a", "t"), world.client("b", "t")]
    settle(*clients)
    clients[0].rebalance_timeout_ms = 1
    clients[0].subscribe("t")
    settle(*clients)
    latest = {key: place for place, (key, _, _) in enumerate(world.driver.log)}
    expected = logged_state(world.group())
    world.driver.log = [entry for place, entry in enumerate(world.driver.log) if latest[entry[0]] == place]
    again = world.driver.replayed().groups[GROUP]
    assert logged_state(again) == expected


def test_the_member_records_hold_all_that_a_member_says():
    world = World(t=1)
    world.beat(
        "a", 0, instance_id="i", rack_id="r", client_id="c", client_host="/h", server_assignor="range", **JOINING
    )
    member = world.driver.replayed().groups[GROUP].members["a"]
    assert dataclasses.asdict(member) == dataclasses.asdict(world.group().members["a"])
    assert (member.instance_id, member.rack_id, member.client_id, member.client_host) == ("i", "r", "c", "/h")
    assert member.rebalance_timeout_ms == 60_000
    assert member.server_assignor == "range"
