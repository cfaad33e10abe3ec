"""A broker that stops, or is killed, and comes back with everything that it had."""

from typing import Any

import pytest

from skep.base.errors import ErrorCode
from skep.records.record import records_in
from skep.testing import EmbeddedBroker
from skep.wire import apis
from tests.raw_client import RawClient
from tests.raw_requests import Want, batch_of, now_ms, seconds

LATEST, EARLIEST = -1, -2


def bring_back(broker: EmbeddedBroker, is_killed: bool) -> None:
    if is_killed:
        broker.kill()
    broker.restart()


both_ways = pytest.mark.parametrize("is_killed", [False, True], ids=["clean stop", "kill -9"])


def metadata(client: RawClient) -> Any:
    return client.ask(apis.METADATA, 12, topics=None)


@both_ways
def test_topics_ids_records_and_marks_are_there_again(
    skep_fresh_broker: EmbeddedBroker, topic: str, is_killed: bool
) -> None:
    broker = skep_fresh_broker
    base = now_ms() - 10_000
    with RawClient(broker.bootstrap_servers) as client:
        client.create_topic(topic, 3, segment_bytes=2000, flush_messages=1, index_interval_bytes=100)
        client.create_topic(f"{topic}-empty", 2)
        for n in range(60):
            client.append(topic, batch_of(b"%d" % n * 20, timestamp=base + n), partition=n % 3)
        before = metadata(client)
        records = {partition: read_all(client, topic, partition) for partition in range(3)}
    bring_back(broker, is_killed)
    with RawClient(broker.bootstrap_servers) as client:
        after = metadata(client)
        assert after.topics == before.topics
        assert (after.cluster_id, after.brokers) == (before.cluster_id, before.brokers)
        for partition in range(3):
            assert read_all(client, topic, partition) == records[partition]
            assert client.list_offset(topic, LATEST, partition=partition).offset == 20
        assert client.list_offset(topic, base + 31, partition=1).offset == 10
        assert client.append(topic, batch_of(b"next"), partition=2) == 20


def read_all(client: RawClient, topic: str, partition: int) -> list[tuple[int, bytes | None]]:
    end = client.list_offset(topic, LATEST, partition=partition).offset
    read: list[tuple[int, bytes | None]] = []
    while len(read) < end:
        fetched = client.fetch_one(Want(topic, len(read), partition))
        assert fetched.records
        read += [(record.offset, record.value) for record in records_in(fetched.records)]
    return read


@both_ways
def test_configs_and_deletions_are_kept(skep_fresh_broker: EmbeddedBroker, topic: str, is_killed: bool) -> None:
    broker = skep_fresh_broker
    with RawClient(broker.bootstrap_servers) as client:
        client.create_topic(topic, max_message_bytes=500)
        client.create_topic(f"{topic}-gone")
        client.append(f"{topic}-gone", batch_of(b"egg"))
        client.delete_topic(f"{topic}-gone")
    bring_back(broker, is_killed)
    with RawClient(broker.bootstrap_servers) as client:
        assert [found.name for found in metadata(client).topics] == [topic]
        assert client.produce(topic, batch_of(b"x" * 1000)).error_code is ErrorCode.message_too_large
        client.create_topic(f"{topic}-gone")
        assert client.list_offset(f"{topic}-gone", LATEST).offset == 0


def test_a_log_start_moved_by_delete_records_is_kept_over_a_clean_stop(
    skep_fresh_broker: EmbeddedBroker, topic: str
) -> None:
    broker = skep_fresh_broker
    with RawClient(broker.bootstrap_servers) as client:
        client.create_topic(topic)
        client.append(topic, batch_of(b"0", b"1", b"2", b"3"))
        partitions = [{"partition_index": 0, "offset": 3}]
        client.ask(apis.DELETE_RECORDS, 2, topics=[{"name": topic, "partitions": partitions}], timeout=seconds(30))
    broker.restart()
    with RawClient(broker.bootstrap_servers) as client:
        assert client.list_offset(topic, EARLIEST).offset == 3
        assert client.fetch_one(Want(topic, 2)).error_code is ErrorCode.offset_out_of_range
        assert [record.offset for record in records_in(client.fetch_one(Want(topic, 3)).records)][-1] == 3


def test_log_end_is_kept_when_every_record_was_deleted(skep_fresh_broker: EmbeddedBroker, topic: str) -> None:
    """Were it not, offsets would be given out a second time and readers would miss what comes next."""
    broker = skep_fresh_broker
    with RawClient(broker.bootstrap_servers) as client:
        client.create_topic(topic, file_delete_delay_ms=0)
        client.append(topic, batch_of(b"0", b"1"))
        partitions = [{"partition_index": 0, "offset": -1}]
        client.ask(apis.DELETE_RECORDS, 2, topics=[{"name": topic, "partitions": partitions}], timeout=seconds(30))
    for _ in range(2):
        broker.restart()
        with RawClient(broker.bootstrap_servers) as client:
            assert client.list_offset(topic, EARLIEST).offset == client.list_offset(topic, LATEST).offset == 2
    with RawClient(broker.bootstrap_servers) as client:
        assert client.append(topic, batch_of(b"2")) == 2


def test_a_fetch_session_does_not_outlive_the_broker(skep_fresh_broker: EmbeddedBroker, topic: str) -> None:
    broker = skep_fresh_broker
    with RawClient(broker.bootstrap_servers) as client:
        client.create_topic(topic)
        session_id = client.fetch(Want(topic, 0), session_epoch=0).session_id
    broker.restart()
    with RawClient(broker.bootstrap_servers) as client:
        response = client.fetch(session_id=session_id, session_epoch=1)
        assert response.error_code is ErrorCode.fetch_session_id_not_found


def test_a_stop_does_not_wait_for_clients_that_wait(skep_fresh_broker: EmbeddedBroker, topic: str) -> None:
    broker = skep_fresh_broker
    with RawClient(broker.bootstrap_servers) as client:
        client.create_topic(topic)
        client.send_fetch(Want(topic, 0), max_wait_s=300)
        broker.restart()
        assert client.is_closed()
    assert "Traceback" not in broker.log
