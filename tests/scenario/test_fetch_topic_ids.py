"""Fetch by topic id (KIP-516): a topic that was deleted and made again is another topic, and readers are told."""

import uuid

import pytest

from skep.base.errors import ErrorCode
from skep.records.record import records_in
from tests.raw_client import RawClient
from tests.raw_requests import Want, batch_of
from tests.waiting import wait_until


def append_when_there(client: RawClient, topic: str, value: bytes, partition: int = 0) -> None:
    """While the files of an old topic go, the new one may answer that it is not there yet, which clients retry."""

    def is_appended() -> bool:
        code = client.produce(topic, batch_of(value), partition=partition).error_code
        assert code in (ErrorCode.none, ErrorCode.unknown_topic_or_partition)
        return code is ErrorCode.none

    wait_until(is_appended, "the new topic takes records")


@pytest.mark.parametrize("version", [13, 15, 16, 17, 18])
def test_an_id_that_no_topic_has_is_unknown(client: RawClient, topic: str, version: int) -> None:
    client.create_topic(topic)
    fetched = client.fetch_one(Want(uuid.uuid4(), 0), version=version)
    assert fetched.error_code is ErrorCode.unknown_topic_id


def test_the_id_of_all_zeros_is_unknown(client: RawClient) -> None:
    fetched = client.fetch_one(Want(uuid.UUID(int=0), 0), version=13)
    assert fetched.error_code is ErrorCode.unknown_topic_id


def test_a_partition_that_the_topic_does_not_have_is_unknown(client: RawClient, topic: str) -> None:
    topic_id = client.create_topic(topic, 2)
    fetched = client.fetch_one(Want(topic_id, 0, partition=2), version=13)
    assert fetched.error_code is ErrorCode.unknown_topic_or_partition


def test_a_recreated_topic_has_a_new_id_and_the_old_one_is_unknown(client: RawClient, topic: str) -> None:
    old_id = client.create_topic(topic)
    client.append(topic, batch_of(b"old"))
    client.delete_topic(topic)
    assert client.fetch_one(Want(old_id, 0), version=16).error_code is ErrorCode.unknown_topic_id
    new_id = client.create_topic(topic)
    assert new_id != old_id
    append_when_there(client, topic, b"new")
    assert client.fetch_one(Want(old_id, 0), version=16).error_code is ErrorCode.unknown_topic_id
    fetched = client.fetch_one(Want(new_id, 0), version=16)
    assert [(record.offset, record.value) for record in records_in(fetched.records)] == [(0, b"new")]


def test_a_reader_by_name_of_a_recreated_topic_never_sees_the_old_records(client: RawClient, topic: str) -> None:
    client.create_topic(topic)
    client.append(topic, batch_of(b"0", b"1", b"2"))
    client.delete_topic(topic)
    client.create_topic(topic)
    wait_until(
        lambda: client.fetch_one(Want(topic, 0), version=11).error_code is ErrorCode.none, "the new topic is readable"
    )
    fetched = client.fetch_one(Want(topic, 0), version=11)
    assert (fetched.high_watermark, fetched.records) == (0, b"")
    # The position that the reader had is now outside of the log, which makes it reset.
    assert client.fetch_one(Want(topic, 3), version=11).error_code is ErrorCode.offset_out_of_range


def test_a_topic_can_be_deleted_and_made_again_many_times(client: RawClient, topic: str) -> None:
    ids = set()
    for turn in range(10):
        ids.add(client.create_topic(topic, 3))
        value = b"%d" % turn
        for partition in range(3):
            append_when_there(client, topic, value, partition)
        fetched = client.fetch_one(Want(topic, 0, partition=2))
        assert [record.value for record in records_in(fetched.records)] == [value]
        client.delete_topic(topic)
    assert len(ids) == 10
