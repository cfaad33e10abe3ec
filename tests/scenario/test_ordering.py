"""Pipelining: many requests at once on one connection, answered one after the other in their order.

``RawClient.receive`` compares the correlation id of every response with the order of the requests.
"""

import pytest

from skep.base.errors import ErrorCode
from skep.records.record import records_in
from skep.testing import EmbeddedBroker
from skep.wire import apis
from skep.wire.apis import Api
from tests.raw_client import RawClient
from tests.raw_requests import Want, batch_of, produce_body


def test_a_thousand_pipelined_produces_are_appended_in_their_order(client: RawClient, topic: str) -> None:
    client.create_topic(topic)
    for n in range(1000):
        client.send_produce(topic, batch_of(b"%d" % n))
    assert [client.receive_produced().base_offset for _ in range(1000)] == list(range(1000))
    read: list[bytes | None] = []
    while len(read) < 1000:
        read += [record.value for record in records_in(client.fetch_one(Want(topic, len(read))).records)]
    assert read == [b"%d" % n for n in range(1000)]


def test_pipelined_produces_that_are_synced_are_answered_in_their_order(client: RawClient, topic: str) -> None:
    client.create_topic(topic, 4, flush_messages=1)
    for n in range(200):
        client.send_produce(topic, batch_of(b"%d" % n), partition=n % 4)
    produced = [client.receive_produced() for _ in range(200)]
    assert [response.index for response in produced] == [n % 4 for n in range(200)]
    assert [response.base_offset for response in produced] == [n // 4 for n in range(200)]


def test_synced_and_unsynced_topics_keep_the_order_of_one_connection(client: RawClient, topic: str) -> None:
    """The unsynced append is done long before the sync that its response has to wait behind."""
    synced, unsynced = f"{topic}-synced", f"{topic}-unsynced"
    client.create_topic(synced, flush_messages=1)
    client.create_topic(unsynced)
    for _ in range(50):
        client.send_produce(synced, batch_of(b"slow"))
        client.send_produce(unsynced, batch_of(b"fast"))
    names = [client.receive().responses[0].name for _ in range(100)]
    assert names == [synced, unsynced] * 50


def test_a_read_behind_a_synced_write_sees_it(client: RawClient, topic: str) -> None:
    client.create_topic(topic, flush_messages=1)
    for offset in range(20):
        client.send_produce(topic, batch_of(b"egg"))
        client.send_fetch(Want(topic, offset))
        assert client.receive_produced().base_offset == offset
        [[fetched]] = [found.partitions for found in client.receive().responses]
        assert [record.offset for record in records_in(fetched.records)] == [offset]


def test_requests_behind_a_long_poll_wait_for_it(client: RawClient, other: RawClient, topic: str) -> None:
    client.create_topic(topic, 2)
    client.send_fetch(Want(topic, 0, 0), max_wait_s=25)
    client.send_produce(topic, batch_of(b"behind"), partition=1)
    client.send(apis.METADATA, 9, topics=[{"name": topic}])
    client.send_fetch(Want(topic, 0, 1))
    other.append(topic, batch_of(b"egg"), partition=0)
    [[polled]] = [found.partitions for found in client.receive().responses]
    assert [record.value for record in records_in(polled.records)] == [b"egg"]
    assert client.receive_produced().error_code is ErrorCode.none
    assert client.receive().topics[0].name == topic
    [[read]] = [found.partitions for found in client.receive().responses]
    assert [record.value for record in records_in(read.records)] == [b"behind"]


def test_a_mixed_pipeline_is_answered_in_order(client: RawClient, topic: str) -> None:
    client.create_topic(topic, flush_messages=1)
    api_versions = {"client_software_name": "test", "client_software_version": "1"}
    expected: list[Api] = []
    for n in range(30):
        client.send_produce(topic, batch_of(b"%d" % n))
        client.send(apis.METADATA, 12, topics=[{"name": f"{topic}-{n % 3}"}], allow_auto_topic_creation=True)
        client.send(apis.API_VERSIONS, 3, **api_versions)
        client.send(apis.LIST_OFFSETS, 7, topics=[{"name": topic, "partitions": [{"timestamp": -1}]}])
        client.send(apis.INIT_PRODUCER_ID, 4, transactional_id=None)
        expected += [apis.PRODUCE, apis.METADATA, apis.API_VERSIONS, apis.LIST_OFFSETS, apis.INIT_PRODUCER_ID]
    ends = []
    for api in expected:
        response = client.receive()
        assert type(response).__name__ == f"{api.name}Response"
        if api is apis.LIST_OFFSETS:
            ends.append(response.topics[0].partitions[0].offset)
    assert ends == list(range(1, 31))


def test_acks_0_gets_no_response_and_does_not_disturb_the_order(client: RawClient, topic: str) -> None:
    client.create_topic(topic)
    for n in range(50):
        client.send_produce(topic, batch_of(b"quiet"), acks=0)
        client.send_produce(topic, batch_of(b"loud"), acks=1)
        assert client.receive_produced().base_offset == 2 * n + 1


@pytest.mark.parametrize("bad", [b"", b"\0" * 100])
def test_acks_0_that_fails_closes_the_connection(skep_broker: EmbeddedBroker, topic: str, bad: bytes) -> None:
    with RawClient(skep_broker.bootstrap_servers) as client:
        client.create_topic(topic)
        client.send_produce(topic, bad, acks=0)
        client.send(apis.METADATA, 9, topics=[])
        assert client.is_closed()


def test_a_client_that_half_closes_still_gets_all_its_responses(skep_broker: EmbeddedBroker, topic: str) -> None:
    with RawClient(skep_broker.bootstrap_servers) as client:
        client.create_topic(topic, flush_messages=1)
        for _ in range(500):
            client.send_produce(topic, batch_of(b"egg"))
        client.send(apis.METADATA, 9, topics=[{"name": topic}])
        client.socket.shutdown(1)
        assert [client.receive_produced().base_offset for _ in range(500)] == list(range(500))
        assert client.receive().topics[0].name == topic
        assert client.is_closed()


def test_many_frames_in_one_packet_and_one_frame_in_many(client: RawClient, topic: str) -> None:
    client.create_topic(topic)
    frames = b""
    for n in range(20):
        frame = client.encode(apis.PRODUCE, 9, produce_body({(topic, 0): batch_of(b"%d" % n)}))
        frames += len(frame).to_bytes(4, "big") + frame
    client.socket.sendall(frames)
    assert [client.receive_produced().base_offset for _ in range(20)] == list(range(20))
    frame = client.encode(apis.PRODUCE, 9, produce_body({(topic, 0): batch_of(b"slow")}))
    for byte in len(frame).to_bytes(4, "big") + frame:
        client.socket.sendall(bytes([byte]))
    assert client.receive_produced().base_offset == 20


def test_connections_do_not_wait_for_each_other(client: RawClient, other: RawClient, topic: str) -> None:
    client.create_topic(topic)
    client.send_fetch(Want(topic, 0), max_wait_s=25)
    for _ in range(20):
        assert other.ask(apis.METADATA, 9, topics=[{"name": topic}]).topics[0].name == topic
    other.append(topic, batch_of(b"egg"))
    assert client.receive().responses
