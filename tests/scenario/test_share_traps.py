"""Mistakes that other implementations of share groups have made, and requests that no good client sends.

Others are tested where they belong. ``window`` is unit/coordination/share/test_share_window, ``states`` is
test_share_operations there, ``partition``, ``sessions`` and ``handlers`` are in unit/broker/share, ``fetch`` is
test_share_fetch here:

offsets twice in a response (KAFKA-19789)     window: no_offset_is_given_twice_in_one_response
gaps after a start (KAFKA-18494)              window: gaps_between_restored_batches_are_fetched_first...
a lock expires during a write (KAFKA-19476)   window: a_lock_that_expires_during_a_failed_write_releases_the_records
told within a change (KAFKA-20505)            unit/broker/share/test_share_traps; franz-go's TestShareGroupETL
a new leader, fetches that wait (KAFKA-19567) partition: a_change_of_the_leader_ends_it_and_wakes_the_fetches...
a session without partitions (KAFKA-20736)    below
a topic of the same name (kafka#23119)        below
sentinel epochs (KAFKA-20694, 20743)          states: a_sentinel_epoch_is_refused, a_read_or_initialize_with_a...
a start or count that goes back (#23074)      states: neither_the_start_nor_the_count_goes_back
a repeated initialize (#23190)                states: a_repeated_initialize_does_not_undo_what_followed
sessions of dead connections                  below; sessions: a_lost_connection_releases_what_its_members_hold;
                                              handlers: a_fetch_whose_connection_is_lost_in_the_midst_of_it...
acknowledgements in epoch 0                   fetch: acknowledgements_cannot_begin_a_session_and_leave_the_earlier_one
acknowledged and forgotten, the final epoch   below
types for each offset                         window: types_for_each_offset_do_not_become_the_last_one
partitions take turns                         fetch: max_records_are_for_all_partitions_and_these_take_turns
retention moves the start                     fetch, partition: the_start_follows_the_log_start
a fenced member keeps its locks and sessions  test_share_members_gone; handlers: a_fetch_whose_session_ends...
a dead letter that is too large (KAFKA-20771) test_dead_letter_copier, test_dead_letters: a_record_that_is_too_large...
a copy of a dense batch (KAFKA-20723)         test_dead_letter_copier: a_batch_that_would_fill_the_memory_is_not...
a letter's time (kafka#22849)                 test_dead_letter_copier: a_letter_has_the_time_of_the_wall_clock
new partitions of a topic (KAFKA-20742)       unit/coordination/groups/share/test_share_states: new_partitions_of...
a refusal of the whole request                below; its code stands for all partitions, as in Kafka
100,000 groups                                unit/coordination/share/test_share_memory; test_share_membership:
                                              what_a_share_group_takes...; sessions of many groups: below
"""

from collections.abc import Iterator
from uuid import UUID

import pytest

from skep.base.errors import ErrorCode
from skep.testing import EmbeddedBroker
from skep.wire import apis
from tests.raw_client import RawClient
from tests.raw_requests import batch_of, create_topics_body
from tests.scenario.share_member import (
    ACCEPT,
    FINAL,
    RELEASE,
    ShareMember,
    acquired,
    initialize_share_state,
    partitions_of,
    values,
)
from tests.waiting import wait_until

NONE = ErrorCode.none
LAST = (1 << 63) - 1


@pytest.fixture
def topic_id(client: RawClient, topic: str) -> UUID:
    """A topic with ten records in partition 0."""
    topic_id = client.create_topic(topic, 2)
    initialize_share_state(client, topic, topic_id, partitions=2)
    client.append(topic, batch_of(*(b"%d" % number for number in range(10))))
    return topic_id


@pytest.fixture
def one(client: RawClient, topic: str, topic_id: UUID) -> ShareMember:
    return ShareMember(client, topic, topic_id)


@pytest.fixture
def two(other: RawClient, topic: str, topic_id: UUID) -> ShareMember:
    return ShareMember(other, topic, topic_id)


@pytest.fixture
def third(skep_broker: EmbeddedBroker) -> Iterator[RawClient]:
    with RawClient(skep_broker.bootstrap_servers) as client:
        yield client


def forgetting(member: ShareMember) -> list[dict[str, object]]:
    return [{"topic_id": member.topic_id, "partitions": [0]}]


# Sessions.


def test_a_fetch_that_waits_takes_no_records_when_its_connection_has_closed(
    third: RawClient, one: ShareMember, two: ShareMember, topic: str, topic_id: UUID
) -> None:
    one.acquire()
    assert one.results({0: [(0, 9, [ACCEPT])]}) == [NONE]
    gone = ShareMember(third, topic, topic_id)
    assert gone.acquire_now() == []
    gone.send_fetch(wait_s=600)
    for _ in range(10):
        assert one.acquire_now() == []
    third.close()
    two.member_id = gone.member_id

    def has_no_session() -> bool:
        refused = two.acknowledge({}, share_session_epoch=99).error_code
        return refused is ErrorCode.share_session_not_found

    wait_until(has_no_session, "the broker has noticed")
    one.client.append(topic, batch_of(b"late"))
    assert one.acquire_now() == [(10, 10, 1)]


def test_a_session_without_partitions_stays_and_may_name_some_again(one: ShareMember) -> None:
    """KAFKA-20736."""
    one.acquire()
    response = one.fetch(wait_s=0, forgotten_topics_data=forgetting(one))
    assert partitions_of(response) == {}
    assert one.results({0: [(0, 4, [ACCEPT])]}) == [NONE], "it still holds what it has acquired"
    assert one.fetch(wait_s=0).error_code is NONE
    again = one.fetch({0: [(5, 9, [RELEASE])]})
    assert acquired(again) == [(5, 9, 2)], "naming the partition adds it to the session"


def test_acknowledgements_of_a_partition_that_the_request_forgets_have_their_effect(
    one: ShareMember, two: ShareMember
) -> None:
    one.acquire()
    response = one.fetch({0: [(0, 9, [ACCEPT])]}, wait_s=0, forgotten_topics_data=forgetting(one))
    assert partitions_of(response)[0].acknowledge_error_code == 0
    assert two.acquire_now() == []
    assert two.acquire_now() == []


def test_the_last_fetch_acknowledges_although_it_forgets_partitions(one: ShareMember, two: ShareMember) -> None:
    one.acquire()
    response = one.fetch({0: [(0, 4, [ACCEPT])]}, epoch=FINAL, forgotten_topics_data=forgetting(one))
    assert partitions_of(response)[0].acknowledge_error_code == 0
    assert two.acquire() == [(5, 9, 2)]


def test_a_refused_request_leaves_what_the_member_holds(one: ShareMember, two: ShareMember) -> None:
    one.acquire()
    assert one.acknowledge({0: [(0, 9, [ACCEPT])]}, share_session_epoch=7).error_code is (
        ErrorCode.invalid_share_session_epoch
    )
    assert two.acquire_now() == []
    assert one.results({0: [(0, 9, [ACCEPT])]}) == [NONE]


def test_the_session_of_another_member_is_not_used(one: ShareMember, two: ShareMember) -> None:
    one.acquire()
    assert two.acknowledge({0: [(0, 9, [ACCEPT])]}, share_session_epoch=1).error_code is (
        ErrorCode.share_session_not_found
    )
    assert one.results({0: [(0, 9, [ACCEPT])]}) == [NONE]


# Acknowledgements.


@pytest.mark.parametrize(
    ("first", "last", "code"),
    [
        (10, 10, ErrorCode.invalid_request),
        (0, 10, ErrorCode.invalid_request),
        (0, 1 << 62, ErrorCode.invalid_request),
        (1 << 62, 1 << 62, ErrorCode.invalid_request),
        (1 << 62, LAST, ErrorCode.invalid_request),
        (0, LAST, ErrorCode.invalid_request),
        (-LAST, LAST, ErrorCode.invalid_request),
        (LAST, 0, ErrorCode.invalid_request),
        (-5, -1, ErrorCode.invalid_request),
    ],
)
def test_offsets_that_were_never_acquired_are_refused(one: ShareMember, first: int, last: int, code: ErrorCode) -> None:
    one.acquire()
    assert one.results({0: [(first, last, [ACCEPT])]}) == [code]
    assert one.results({0: [(first, last, [RELEASE])]}) == [code]
    assert one.results({0: [(0, 9, [ACCEPT])]}) == [NONE], "nothing has changed"


def test_a_record_in_flight_is_acknowledged_once(one: ShareMember, two: ShareMember) -> None:
    one.acquire()
    assert one.results({0: [(5, 5, [ACCEPT])]}) == [NONE]
    assert one.results({0: [(5, 5, [ACCEPT])]}) == [ErrorCode.invalid_record_state]
    assert one.results({0: [(5, 5, [RELEASE])]}) == [ErrorCode.invalid_record_state]
    assert one.results({0: [(0, 9, [RELEASE])]}) == [ErrorCode.invalid_record_state], "all or none"
    assert one.results({0: [(0, 4, [RELEASE]), (6, 9, [RELEASE])]}) == [NONE]
    assert one.results({0: [(0, 4, [ACCEPT])]}) == [ErrorCode.invalid_record_state], "it has given them back"
    assert two.acquire() == [(0, 4, 2), (6, 9, 2)]


def test_a_record_that_went_on_to_another_member_is_not_acknowledged_by_the_first(
    one: ShareMember, two: ShareMember
) -> None:
    one.acquire()
    one.results({0: [(0, 9, [RELEASE])]})
    assert two.acquire() == [(0, 9, 2)]
    for kind in (ACCEPT, RELEASE):
        assert one.results({0: [(0, 9, [kind])]}) == [ErrorCode.invalid_record_state]
    assert two.results({0: [(0, 9, [ACCEPT])]}) == [NONE]
    for kind in (ACCEPT, RELEASE):
        # In Kafka it would be told that it has accepted what the other one has.
        assert one.results({0: [(0, 9, [kind])]}) == [ErrorCode.invalid_record_state], "also below the start"
    assert two.acquire_now() == []


def test_many_groups_of_one_client_are_limited_and_end_with_its_connection(
    skep_broker: EmbeddedBroker, one: ShareMember, topic: str, topic_id: UUID
) -> None:
    limit = 2_000
    with RawClient(skep_broker.bootstrap_servers) as client:
        members = [ShareMember(client, f"{topic}-{number}", topic_id) for number in range(limit + 5)]
        for member in members:
            member.send_fetch(wait_s=0)
        codes = [client.receive().error_code for _ in members]
    assert set(codes) == {NONE, ErrorCode.share_session_limit_reached}
    assert codes.count(NONE) <= limit
    wait_until(lambda: one.fetch(epoch=0, wait_s=0).error_code is NONE, "there is room again")


# Topics.


def test_a_topic_of_the_same_name_is_another_topic(client: RawClient, one: ShareMember, topic: str) -> None:
    one.acquire()
    assert one.results({0: [(0, 6, [ACCEPT])]}) == [NONE]
    client.delete_topic(topic)
    topic_id = wait_until(lambda: _created(client, topic), "it can be created again")
    # An append is refused while the files of the earlier topic are being deleted.
    wait_until(lambda: client.produce(topic, batch_of(b"new")).error_code is NONE, "a record is appended")
    initialize_share_state(client, topic, topic_id, partitions=2)
    codes = {
        partition.error_code
        for response in (one.fetch(wait_s=0), one.acknowledge({0: [(7, 9, [ACCEPT])]}))
        for of_topic in response.responses
        for partition in of_topic.partitions
    }
    assert codes == {ErrorCode.unknown_topic_id}
    again = ShareMember(client, topic, topic_id)
    response = again.fetch()
    assert acquired(response) == [(0, 0, 1)]
    assert values(response) == [b"new"]


def _created(client: RawClient, topic: str) -> UUID | None:
    [made] = client.ask(apis.CREATE_TOPICS, 7, **create_topics_body(topic, 2, {})).topics
    return UUID(int=made.topic_id.int) if made.error_code is NONE else None
