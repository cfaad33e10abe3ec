"""What the members of a group may say of themselves, all together: skep.max.group.metadata.bytes."""

import pytest

from skep.base.config.broker_config import read_broker_config
from skep.base.errors import ErrorCode, OptionError
from skep.coordination.groups.metadata_size import ENTRY_BYTES, protocols_bytes, text_bytes, topics_bytes
from tests.unit.coordination.groups.classic_groups import ClassicGroups, code_of
from tests.unit.coordination.groups.consumer_clients import JOINING, World, refusal
from tests.unit.coordination.groups.mixed_clients import Classic, run

LIMIT = 10_000
FULL = ErrorCode.group_max_size_reached


def said(size: int) -> tuple[tuple[str, bytes], ...]:
    return (("range", b"x" * size),)


@pytest.fixture
def groups() -> ClassicGroups:
    return ClassicGroups({"skep.max.group.metadata.bytes": str(LIMIT)})


def test_texts_count_as_bytes_and_each_entry_counts_something():
    assert text_bytes("abc", None, "", "é") == 5
    assert topics_bytes(["ab", ""]) == 2 + 2 * ENTRY_BYTES
    assert protocols_bytes([("é", b"abc")]) == 5 + ENTRY_BYTES


def test_no_id_may_be_longer_than_a_record_can_hold_with_what_is_added_to_it():
    assert read_broker_config({"skep.max.group.id.bytes": "30000"}).coordinator.max_group_id_bytes == 30_000
    with pytest.raises(OptionError, match="between 1 and 30000"):
        read_broker_config({"skep.max.group.id.bytes": "30001"})


# Classic groups.


@pytest.mark.parametrize("version", [0, 3])
def test_members_of_old_versions_are_refused_when_together_they_say_too_much(groups, version):
    groups.join(version=version, protocols=said(6_000))
    before = groups.group.metadata_bytes
    assert code_of(groups.join(version=version, protocols=said(6_000))) is FULL
    assert (len(groups.group.members), groups.group.metadata_bytes) == (1, before)
    groups.join(version=version, protocols=said(3_000))
    assert len(groups.group.members) == 2


def test_many_names_of_protocols_count_too(groups):
    names = tuple((f"{number}", b"") for number in range(LIMIT // ENTRY_BYTES))
    assert code_of(groups.join(version=3, protocols=names)) is FULL
    assert not groups.shard.groups


def test_an_id_whose_owner_comes_back_with_too_much_is_given_up_and_nobody_waits_for_it(groups):
    leader, *_ = groups.stable(1)
    late = groups.new_id()
    again = groups.join(leader, protocols=(("range", b"other"),))
    assert not again.is_answered
    assert code_of(groups.join(late, protocols=said(LIMIT))) is FULL
    assert again.reply["generation_id"] == 2
    assert not groups.group.pending


def test_the_first_of_a_group_that_says_too_much_leaves_no_group(groups):
    member_id = groups.new_id()
    assert code_of(groups.join(member_id, protocols=said(LIMIT))) is FULL
    assert not groups.shard.groups


def test_a_member_that_comes_back_with_too_much_is_refused_and_stays_as_it_was(groups):
    _, follower = groups.stable(2, protocols=said(4_000))
    assert code_of(groups.join(follower, protocols=said(7_000))) is FULL
    assert groups.group.state_name == "Stable"
    assert groups.group.members[follower].protocols == said(4_000)
    assert groups.heartbeat(follower, 1) is ErrorCode.none


def test_when_a_member_goes_there_is_room_for_another(groups):
    leader, follower = groups.stable(2, protocols=said(4_000))
    assert groups.leave(follower) == [ErrorCode.none]
    groups.join(leader, protocols=said(4_000))
    _, joining = groups.join_as_new(protocols=said(4_000))
    assert not joining.is_answered
    assert len(groups.group.members) == 2


def test_a_static_member_takes_its_own_place_and_not_a_second_one(groups):
    joining = groups.join(instance="i", protocols=said(6_000))
    groups.pass_ms(300)
    first = joining.reply["member_id"]
    groups.sync(first, 1, {first: b"all"}, instance="i")
    assert code_of(groups.join(instance="i", protocols=said(LIMIT))) is FULL
    assert groups.group.static_ids == {"i": first}
    assert code_of(groups.join(instance="i", protocols=said(7_000))) is ErrorCode.none


def test_members_that_are_there_when_the_limit_is_lowered_may_stay(groups):
    leader, *_ = groups.stable(1, protocols=said(8_000))
    groups.config.value = ClassicGroups({"skep.max.group.metadata.bytes": "1000"}).config.value
    assert code_of(groups.join(leader, protocols=said(8_000))) is ErrorCode.none
    assert code_of(groups.join(leader, protocols=said(8_001))) is FULL


def test_the_sum_is_the_same_after_a_restart(groups):
    groups.stable(3)
    before = groups.group.metadata_bytes
    groups.driver.restart()
    assert groups.group.metadata_bytes == before > 0


def test_of_a_client_id_without_end_only_a_part_is_in_the_member_id(groups):
    assert len(groups.new_id(client_id="é" * 4_000).encode()) < 600


# Consumer groups.


@pytest.fixture
def world() -> World:
    world = World(t=2)
    world.set_option("skep.max.group.metadata.bytes", str(LIMIT))
    return world


def names(count: int) -> frozenset[str]:
    return frozenset(f"topic-{number:04}" for number in range(count))


def test_members_of_consumer_groups_are_refused_when_together_they_subscribe_to_too_much(world):
    world.beat("a", 0, **{**JOINING, "topic_names": names(200)})
    written = len(world.driver.log)
    assert refusal(world, "b", 0, **{**JOINING, "topic_names": names(300)}) is FULL
    assert refusal(world, "a", 1, topic_names=names(500)) is FULL
    assert len(world.driver.log) == written
    assert world.group().members["a"].topic_names == names(200)
    assert world.beat("a", 1)["member_epoch"] == 1
    assert world.beat("b", 0, **JOINING)["member_epoch"] == 2
    assert world.beat("a", 1, topic_names=names(1))["member_epoch"] == 3
    world.beat("b", 2, topic_names=names(300))
    assert world.group().members["b"].topic_names == names(300)


def test_what_a_member_that_has_left_said_does_not_count(world):
    world.beat("a", 0, **{**JOINING, "topic_names": names(300)})
    world.beat("a", -1)
    assert world.group().metadata_bytes == 0
    assert world.beat("b", 0, **{**JOINING, "topic_names": names(300)})["member_epoch"] > 0


def test_the_topics_that_expressions_match_count_too(world):
    for number in range(200):
        world.create(f"u{number}", 1)
    for member_id, regex in (("a", "u.*"), ("b", "u.+"), ("c", "u[0-9]*"), ("d", "u[0-9]+")):
        world.beat(member_id, 0, **{**JOINING, "topic_names": None, "topic_regex": regex})
    assert refusal(world, "e", 0, **{**JOINING, "topic_names": None, "topic_regex": "u.?.*"}) is FULL
    world.beat("d", -1)
    world.beat("e", 0, **{**JOINING, "topic_names": None, "topic_regex": "u.?.*"})


def test_a_classic_member_of_a_consumer_group_is_refused_as_well(world):
    new = world.client("n", "t")
    classic = Classic(world, "t").join()
    run(world, new, classic)
    assert len(world.group().members) == 2
    large = Classic(world, *names(300), protocols=("cooperative-sticky", "range"))
    large.join()
    run(world, new, classic, large, rounds=3)
    assert FULL in large.errors
    assert len(world.group().members) == 2
