"""Fetch sessions: what an incremental fetch asks for and what its response may leave out (KIP-227)."""

import random
from types import SimpleNamespace

import pytest

from skep.base.errors import ErrorCode, KafkaError
from skep.base.loop.slicer import run_at_once
from skep.broker.fetch.fetch_sessions import EVICT_AFTER_IDLE_S, FetchSessions
from skep.security.principal import Principal
from skep.wire.fetch.fetch_response import FetchedPartition
from tests.manual_clock import ManualClock

ALICE, MALLORY = Principal("alice"), Principal("mallory")


def session_for(sessions, request, version, principal=ALICE):
    return run_at_once(sessions.session_for(request, version, principal))


def fetch(session_id, epoch, partitions=(), forgotten=()):
    wanted = [
        SimpleNamespace(partition=p, current_leader_epoch=-1, fetch_offset=offset, partition_max_bytes=100)
        for p, offset in partitions
    ]
    return SimpleNamespace(
        session_id=session_id,
        session_epoch=epoch,
        topics=[SimpleNamespace(topic="t", partitions=wanted)] if wanted else [],
        forgotten_topics_data=[SimpleNamespace(topic="t", partitions=list(forgotten))] if forgotten else [],
    )


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def sessions(clock):
    return FetchSessions(clock, max_sessions=2, max_partitions=10)


def begin(sessions, partitions=((0, 0), (1, 0))):
    session, is_incremental = session_for(sessions, fetch(0, 0, partitions), 12)
    assert not is_incremental
    return session


def offsets(session):
    return {wanted.partition: wanted.fetch_offset for wanted in session}


def test_a_session_remembers_what_was_asked_for(sessions):
    session = begin(sessions)
    again, is_incremental = session_for(sessions, fetch(session.session_id, 1, [(1, 7)]), 12)
    assert again is session
    assert is_incremental
    assert offsets(session) == {0: 0, 1: 7}


@pytest.mark.parametrize("epoch", [0, -1])
def test_a_session_of_another_principal_does_not_exist(sessions, epoch):
    session = begin(sessions)
    with pytest.raises(KafkaError) as error:
        session_for(sessions, fetch(session.session_id, 1, [(7, 0)], forgotten=[0, 1]), 12, MALLORY)
    assert error.value.code is ErrorCode.fetch_session_id_not_found
    # It ends nothing either, and gets the response as for an id that was never given.
    own, is_incremental = session_for(sessions, fetch(session.session_id, epoch, [(0, 0)]), 12, MALLORY)
    assert (own is None, is_incremental) == (epoch == -1, False)
    assert session_for(sessions, fetch(session.session_id, 1), 12) == (session, True)
    assert offsets(session) == {0: 0, 1: 0}


def test_the_ids_of_sessions_do_not_follow_from_others(sessions):
    random.seed(1)
    first = begin(sessions).session_id
    session_for(sessions, fetch(first, -1), 12)
    random.seed(1)
    assert begin(sessions).session_id != first
    assert 1 <= first <= 0x7FFF_FFFF


def test_forgotten_partitions_are_no_longer_read(sessions):
    session = begin(sessions)
    session_for(sessions, fetch(session.session_id, 1, forgotten=[0]), 12)
    assert offsets(session) == {1: 0}


def test_a_repeated_epoch_is_refused_because_a_response_may_be_lost(sessions):
    session = begin(sessions)
    session_for(sessions, fetch(session.session_id, 1), 12)
    with pytest.raises(KafkaError) as error:
        session_for(sessions, fetch(session.session_id, 1), 12)
    assert error.value.code is ErrorCode.invalid_fetch_session_epoch


def test_an_unknown_session_is_refused(sessions):
    with pytest.raises(KafkaError) as error:
        session_for(sessions, fetch(12345, 1), 12)
    assert error.value.code is ErrorCode.fetch_session_id_not_found


def test_a_session_does_not_change_from_names_to_ids(sessions):
    session = begin(sessions)
    with pytest.raises(KafkaError) as error:
        session_for(sessions, fetch(session.session_id, 1), 13)
    assert error.value.code is ErrorCode.fetch_session_topic_id_error


def test_the_final_epoch_ends_the_session(sessions):
    session = begin(sessions)
    assert session_for(sessions, fetch(session.session_id, -1, [(0, 0)]), 12) == (None, False)
    assert len(sessions) == 0


def test_after_the_last_epoch_comes_the_first(sessions):
    session = begin(sessions)
    session.next_epoch = 0x7FFF_FFFF
    session_for(sessions, fetch(session.session_id, 0x7FFF_FFFF), 12)
    assert session.next_epoch == 1


def test_without_a_place_a_fetch_goes_on_without_a_session(sessions, clock):
    first = begin(sessions)
    begin(sessions)
    assert begin(sessions) is None
    clock.advance_ms(int(EVICT_AFTER_IDLE_S * 1000) + 1)
    assert begin(sessions) is not None
    with pytest.raises(KafkaError):
        session_for(sessions, fetch(first.session_id, 1), 12)


def test_a_session_in_use_is_not_the_one_that_gives_way(sessions, clock):
    first, second = begin(sessions), begin(sessions)
    clock.advance_ms(int(EVICT_AFTER_IDLE_S * 1000) + 1)
    session_for(sessions, fetch(first.session_id, 1), 12)
    begin(sessions)
    session_for(sessions, fetch(first.session_id, 2), 12)
    with pytest.raises(KafkaError):
        session_for(sessions, fetch(second.session_id, 1), 12)


def test_only_news_is_told(sessions):
    session = begin(sessions)
    quiet = FetchedPartition(0, 0, high_watermark=5, log_start_offset=0)
    assert session.is_news("t", quiet)
    assert not session.is_news("t", quiet)
    assert session.is_news("t", quiet._replace(records=b"x"))
    assert session.is_news("t", quiet._replace(high_watermark=6))
    assert session.is_news("t", quiet._replace(high_watermark=6, log_start_offset=1))


def test_an_error_is_told_every_time(sessions):
    session = begin(sessions)
    failed = FetchedPartition(0, ErrorCode.offset_out_of_range)
    assert session.is_news("t", failed)
    assert session.is_news("t", failed)


def test_a_partition_that_had_records_goes_to_the_end(sessions):
    session = begin(sessions, [(0, 0), (1, 0), (2, 0)])
    session.is_news("t", FetchedPartition(0, 0, records=b"x"))
    assert [wanted.partition for wanted in session] == [1, 2, 0]


def many(count):
    return [(partition, 0) for partition in range(count)]


def test_a_fetch_of_more_partitions_than_sessions_may_remember_gets_none(sessions):
    assert begin(sessions, many(11)) is None
    assert begin(sessions, many(10)) is not None
    assert begin(sessions, many(1)) is None


def test_a_session_that_grows_too_large_ends_and_its_room_is_free_again(sessions):
    session = begin(sessions, many(6))
    with pytest.raises(KafkaError) as error:
        session_for(sessions, fetch(session.session_id, 1, many(11)), 12)
    assert error.value.code is ErrorCode.fetch_session_id_not_found
    assert begin(sessions, many(10)) is not None


def test_forgotten_partitions_and_ended_sessions_give_their_room_back(sessions):
    session = begin(sessions, many(10))
    session_for(sessions, fetch(session.session_id, 1, forgotten=[0, 1, 2]), 12)
    other = begin(sessions, many(3))
    assert other is not None
    session_for(sessions, fetch(session.session_id, -1), 12)
    session_for(sessions, fetch(other.session_id, -1), 12)
    assert begin(sessions, many(10)) is not None


def test_a_fetcher_has_one_session_and_the_fetchers_of_a_follower_have_one_each(sessions):
    first, second = begin(sessions), begin(sessions)
    sessions.watch_for(first, (2, "broker-2-fetcher-0"))
    sessions.watch_for(second, (2, "broker-2-fetcher-1"))
    for session in (first, second):
        assert session_for(sessions, fetch(session.session_id, 1), 12) == (session, True)
    sessions.max_sessions = 3
    sessions.watch_for(begin(sessions), (2, "broker-2-fetcher-0"))
    with pytest.raises(KafkaError) as refused:
        session_for(sessions, fetch(first.session_id, 2), 12)
    assert refused.value.code is ErrorCode.fetch_session_id_not_found
    assert session_for(sessions, fetch(second.session_id, 2), 12) == (second, True)
