"""Fetch sessions (KIP-227): named once, then only what changed goes either way."""

from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest

from skep.base.errors import ErrorCode
from skep.records.record import records_in
from skep.testing import EmbeddedBroker
from skep.wire import apis
from tests.raw_client import RawClient
from tests.raw_requests import Want, batch_of, partitions_in, seconds

NEW, NONE = 0, -1


def told(response: Any) -> dict[int, list[bytes | None]]:
    """The partitions that a response mentions, with the values that came."""
    return {
        index: [record.value for record in records_in(partition.records)]
        for (_, index), partition in partitions_in(response).items()
    }


@pytest.fixture
def session(client: RawClient, topic: str) -> int:
    """A session over three partitions of ``topic``, all read from 0."""
    client.create_topic(topic, 3)
    response = client.fetch(*(Want(topic, 0, partition) for partition in range(3)), session_epoch=NEW)
    assert response.error_code is ErrorCode.none
    assert response.session_id > 0
    assert told(response) == {0: [], 1: [], 2: []}
    return int(response.session_id)


def test_an_incremental_fetch_names_only_what_changed(
    client: RawClient, other: RawClient, topic: str, session: int
) -> None:
    assert told(client.fetch(session_id=session, session_epoch=1)) == {}
    other.append(topic, batch_of(b"egg"), partition=1)
    response = client.fetch(session_id=session, session_epoch=2)
    assert response.session_id == session
    assert told(response) == {1: [b"egg"]}
    assert told(client.fetch(Want(topic, 1, 1), session_id=session, session_epoch=3)) == {}


def test_a_position_that_does_not_move_gives_the_same_records_again(
    client: RawClient, topic: str, session: int
) -> None:
    client.append(topic, batch_of(b"egg"), partition=1)
    for epoch in (1, 2):
        assert told(client.fetch(session_id=session, session_epoch=epoch)) == {1: [b"egg"]}


def test_a_forgotten_partition_comes_no_more(client: RawClient, topic: str, session: int) -> None:
    for partition in range(3):
        client.append(topic, batch_of(b"egg"), partition=partition)
    response = client.fetch(session_id=session, session_epoch=1, forgotten=[(topic, 0), (topic, 2)])
    assert told(response) == {1: [b"egg"]}
    # It can be added again.
    response = client.fetch(Want(topic, 0, 2), session_id=session, session_epoch=2)
    assert told(response) == {1: [b"egg"], 2: [b"egg"]}


def test_an_incremental_fetch_waits_for_partitions_it_does_not_name(
    client: RawClient, other: RawClient, topic: str, session: int
) -> None:
    client.send_fetch(session_id=session, session_epoch=1, max_wait_s=25)
    other.append(topic, batch_of(b"egg"), partition=2)
    assert told(client.receive()) == {2: [b"egg"]}


def test_a_log_start_that_moved_is_told_without_records(client: RawClient, topic: str, session: int) -> None:
    client.append(topic, batch_of(b"0", b"1"), partition=0)
    assert told(client.fetch(Want(topic, 2, 0), session_id=session, session_epoch=1)) == {0: []}
    assert told(client.fetch(session_id=session, session_epoch=2)) == {}
    client.ask(
        apis.DELETE_RECORDS,
        2,
        topics=[{"name": topic, "partitions": [{"partition_index": 0, "offset": 1}]}],
        timeout=seconds(30),
    )
    response = client.fetch(session_id=session, session_epoch=3)
    assert [partition.log_start_offset for partition in partitions_in(response).values()] == [1]


def test_another_epoch_than_the_next_is_refused_and_the_session_lives_on(
    client: RawClient, topic: str, session: int
) -> None:
    for epoch in (2, 7):
        response = client.fetch(session_id=session, session_epoch=epoch)
        assert (response.error_code, response.responses) == (ErrorCode.invalid_fetch_session_epoch, ())
    assert client.fetch(session_id=session, session_epoch=1).error_code is ErrorCode.none


def test_an_unknown_session_is_refused(client: RawClient, session: int) -> None:
    unknown = session ^ 1
    response = client.fetch(session_id=unknown, session_epoch=1)
    assert (response.error_code, response.responses) == (ErrorCode.fetch_session_id_not_found, ())
    assert client.fetch(session_id=0, session_epoch=3).error_code is ErrorCode.fetch_session_id_not_found


def test_epoch_minus_1_ends_the_session(client: RawClient, topic: str, session: int) -> None:
    response = client.fetch(Want(topic, 0, 0), session_id=session, session_epoch=NONE)
    assert (response.error_code, response.session_id, told(response)) == (ErrorCode.none, 0, {0: []})
    gone = client.fetch(session_id=session, session_epoch=1)
    assert gone.error_code is ErrorCode.fetch_session_id_not_found


def test_epoch_0_with_a_session_id_replaces_the_session(client: RawClient, topic: str, session: int) -> None:
    response = client.fetch(Want(topic, 0, 2), session_id=session, session_epoch=NEW)
    assert response.session_id not in (0, session)
    assert told(response) == {2: []}
    assert client.fetch(session_id=session, session_epoch=1).error_code is ErrorCode.fetch_session_id_not_found


def test_a_fetch_without_a_session_gets_none(client: RawClient, topic: str) -> None:
    client.create_topic(topic)
    assert client.fetch(Want(topic, 0), session_epoch=NONE).session_id == 0


def test_the_last_partition_forgotten_ends_the_session(client: RawClient, topic: str, session: int) -> None:
    forgotten = [(topic, partition) for partition in range(3)]
    response = client.fetch(session_id=session, session_epoch=1, forgotten=forgotten)
    assert (response.error_code, response.session_id, told(response)) == (ErrorCode.none, 0, {})


def test_a_session_by_names_cannot_go_on_by_ids(client: RawClient, topic: str, session: int) -> None:
    response = client.fetch(version=13, session_id=session, session_epoch=1)
    assert response.error_code is ErrorCode.fetch_session_topic_id_error


def test_a_session_by_topic_ids_tells_of_a_deleted_topic(client: RawClient, topic: str) -> None:
    topic_id = client.create_topic(topic)
    session_id = client.fetch(Want(topic_id, 0), version=16, session_epoch=NEW).session_id
    client.append(topic, batch_of(b"egg"))
    assert told(client.fetch(version=16, session_id=session_id, session_epoch=1)) == {0: [b"egg"]}
    client.delete_topic(topic)
    response = client.fetch(version=16, session_id=session_id, session_epoch=2)
    [(key, partition)] = partitions_in(response).items()
    assert isinstance(key[0], UUID)
    assert (key[0], partition.error_code) == (topic_id, ErrorCode.unknown_topic_id)


def test_an_error_is_told_every_time(client: RawClient, topic: str, session: int) -> None:
    client.fetch(Want(topic, 99, 0), session_id=session, session_epoch=1)
    for epoch in (2, 3):
        response = client.fetch(session_id=session, session_epoch=epoch)
        assert [p.error_code for p in partitions_in(response).values()] == [ErrorCode.offset_out_of_range]


def test_under_a_tight_limit_every_partition_gets_its_turn(client: RawClient, topic: str, session: int) -> None:
    for partition in range(3):
        client.append(topic, batch_of(b"x" * 100), partition=partition)
    first_served = []
    for epoch in range(1, 4):
        response = client.fetch(session_id=session, session_epoch=epoch, max_bytes=1)
        first_served += [index for index, values in told(response).items() if values]
    assert sorted(first_served) == [0, 1, 2]


@pytest.fixture
def full_broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(options={"max.incremental.fetch.session.cache.slots": "1"}) as broker:
        yield broker


def test_without_a_free_slot_fetches_go_on_without_a_session(full_broker: EmbeddedBroker, topic: str) -> None:
    with RawClient(full_broker.bootstrap_servers) as client:
        client.create_topic(topic)
        client.append(topic, batch_of(b"egg"))
        first = client.fetch(Want(topic, 1), session_epoch=NEW)
        second = client.fetch(Want(topic, 0), session_epoch=NEW)
        assert first.session_id > 0
        assert second.session_id == 0
        assert told(second) == {0: [b"egg"]}
        # The session that was there has the older right: it is evicted only when it is not used.
        assert client.fetch(session_id=first.session_id, session_epoch=1).error_code is ErrorCode.none
        client.fetch(Want(topic, 1), session_id=first.session_id, session_epoch=NONE)
        assert client.fetch(Want(topic, 1), session_epoch=NEW).session_id > 0
