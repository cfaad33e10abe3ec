"""Long polling: a fetch that finds too little waits for more, for its time, or for its partition to change."""

import select
import time
from typing import Any

from skep.base.errors import ErrorCode
from skep.records.record import records_in
from skep.testing import EmbeddedBroker
from skep.wire import apis
from tests.raw_client import RawClient
from tests.raw_requests import Want, batch_of, partitions_in, seconds

LONG_S = 600.0
"""Longer than the client waits: a fetch that nothing ends before is a failure."""
A_MOMENT_S = 0.15


def is_waiting(client: RawClient) -> bool:
    """Whether no response comes for a moment; a broker that answers too early does so at once."""
    return not select.select([client.socket], [], [], A_MOMENT_S)[0]


def values_in(response: Any) -> list[bytes | None]:
    return [record.value for found in partitions_in(response).values() for record in records_in(found.records)]


def test_with_nothing_to_read_the_response_comes_after_max_wait(client: RawClient, topic: str) -> None:
    client.create_topic(topic)
    began = time.monotonic()
    fetched = client.fetch_one(Want(topic, 0), max_wait_s=0.3)
    assert time.monotonic() - began > 0.25
    assert (fetched.error_code, fetched.records) == (ErrorCode.none, b"")


def test_data_that_arrives_ends_the_wait(client: RawClient, other: RawClient, topic: str) -> None:
    client.create_topic(topic)
    client.send_fetch(Want(topic, 0), max_wait_s=LONG_S)
    assert is_waiting(client)
    other.append(topic, batch_of(b"egg"))
    assert values_in(client.receive()) == [b"egg"]


def test_data_that_arrives_with_the_request_is_not_overlooked(
    skep_broker: EmbeddedBroker, client: RawClient, other: RawClient, topic: str
) -> None:
    """Both are there when the broker looks at its sockets: the append falls between the fetch's look and its wait."""
    client.create_topic(topic)
    for offset in range(5):
        skep_broker.pause()
        client.send_fetch(Want(topic, offset), max_wait_s=LONG_S)
        other.send_produce(topic, batch_of(b"%d" % offset))
        skep_broker.resume()
        assert other.receive_produced().base_offset == offset
        assert values_in(client.receive()) == [b"%d" % offset]


def test_min_bytes_0_does_not_wait(client: RawClient, topic: str) -> None:
    client.create_topic(topic)
    client.fetch_one(Want(topic, 0), max_wait_s=LONG_S, min_bytes=0)


def test_min_bytes_counts_over_all_partitions(client: RawClient, other: RawClient, topic: str) -> None:
    client.create_topic(topic, 2)
    batch = batch_of(b"x" * 100)
    client.send_fetch(Want(topic, 0, 0), Want(topic, 0, 1), max_wait_s=LONG_S, min_bytes=2 * len(batch))
    assert is_waiting(client)
    other.append(topic, batch, partition=1)
    assert is_waiting(client)
    other.append(topic, batch, partition=0)
    assert len(values_in(client.receive())) == 2


def test_what_is_there_already_counts_towards_min_bytes(client: RawClient, other: RawClient, topic: str) -> None:
    client.create_topic(topic)
    batch = batch_of(b"x" * 100)
    client.append(topic, batch)
    client.send_fetch(Want(topic, 0), max_wait_s=LONG_S, min_bytes=len(batch) + 1)
    assert is_waiting(client)
    other.append(topic, batch)
    assert len(values_in(client.receive())) == 2


def test_when_the_time_is_up_what_there_is_comes_though_less_than_min_bytes(client: RawClient, topic: str) -> None:
    client.create_topic(topic)
    client.append(topic, batch_of(b"egg"))
    assert values_in(client.fetch(Want(topic, 0), max_wait_s=0.2, min_bytes=10_000)) == [b"egg"]


def test_writes_to_other_partitions_do_not_end_the_wait(client: RawClient, other: RawClient, topic: str) -> None:
    client.create_topic(topic, 2)
    client.send_fetch(Want(topic, 0, 0), max_wait_s=LONG_S)
    other.append(topic, batch_of(b"elsewhere"), partition=1)
    assert is_waiting(client)
    other.append(topic, batch_of(b"here"), partition=0)
    assert values_in(client.receive()) == [b"here"]


def test_deleting_the_topic_ends_the_wait_with_an_error(client: RawClient, other: RawClient, topic: str) -> None:
    client.create_topic(topic)
    client.send_fetch(Want(topic, 0), max_wait_s=LONG_S)
    assert is_waiting(client)
    other.delete_topic(topic)
    [[fetched]] = [topic.partitions for topic in client.receive().responses]
    assert fetched.error_code is ErrorCode.unknown_topic_or_partition


def test_deleting_records_under_a_waiting_reader_tells_it(client: RawClient, other: RawClient, topic: str) -> None:
    client.create_topic(topic)
    client.append(topic, batch_of(b"0", b"1", b"2"))
    client.send_fetch(Want(topic, 1), max_wait_s=LONG_S, min_bytes=10_000)
    assert is_waiting(client)
    other.ask(
        apis.DELETE_RECORDS,
        2,
        topics=[{"name": topic, "partitions": [{"partition_index": 0, "offset": 2}]}],
        timeout=seconds(30),
    )
    [[fetched]] = [topic.partitions for topic in client.receive().responses]
    assert fetched.error_code is ErrorCode.offset_out_of_range


def test_a_client_that_leaves_while_it_waits_leaves_nothing_behind(skep_broker: EmbeddedBroker, topic: str) -> None:
    with RawClient(skep_broker.bootstrap_servers) as staying:
        staying.create_topic(topic)
        for _ in range(20):
            with RawClient(skep_broker.bootstrap_servers) as leaving:
                leaving.send_fetch(Want(topic, 0), max_wait_s=LONG_S)
                leaving.socket.shutdown(1)
        assert staying.append(topic, batch_of(b"egg")) == 0
        assert values_in(staying.fetch(Want(topic, 0), max_wait_s=LONG_S)) == [b"egg"]
    assert "Traceback" not in skep_broker.log
