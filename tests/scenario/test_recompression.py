"""Topics with a ``compression.type``: batches are stored in that codec, in order, whatever codec they were sent in."""

from collections.abc import Iterator

import pytest
from confluent_kafka import Producer

from skep.base.errors import ErrorCode
from skep.records.batch import BatchHeader, headers_in, is_intact, read_header
from skep.records.builder import NewRecord, build_batch
from skep.records.compression import LARGEST_RECOMPRESSED, Codec
from skep.records.record import records_in
from skep.testing import EmbeddedBroker
from skep.wire import apis
from tests.raw_client import RawClient
from tests.raw_requests import Want, batch_of, produce_body

RECORDS = [NewRecord(b"k%d" % n, b"value %d" % n * 20, 1_700_000_000_000 + n, (("h", b"1"),)) for n in range(50)]
STORED = {"uncompressed": Codec.NONE, "gzip": Codec.GZIP, "snappy": Codec.SNAPPY, "lz4": Codec.LZ4, "zstd": Codec.ZSTD}


def stored(client: RawClient, topic: str, offset: int = 0) -> bytes:
    records: bytes = client.fetch_one(Want(topic, offset)).records
    return records


def headers(client: RawClient, topic: str) -> Iterator[BatchHeader]:
    return (header for _, header in headers_in(stored(client, topic)))


@pytest.mark.parametrize("name", STORED)
def test_a_batch_of_any_codec_is_stored_in_that_of_the_topic(client: RawClient, topic: str, name: str) -> None:
    client.create_topic(topic, compression_type=name)
    for number, sent in enumerate(Codec):
        client.append(topic, build_batch(RECORDS, codec=sent))
        batch = stored(client, topic, number * len(RECORDS))
        header = read_header(batch)
        assert (header.codec, header.base_offset) == (STORED[name], number * len(RECORDS))
        assert is_intact(batch)
        assert [(r.key, r.value, r.timestamp) for r in records_in(batch)] == [r[:3] for r in RECORDS]


def test_a_batch_in_the_codec_of_the_topic_passes_through_untouched(client: RawClient, topic: str) -> None:
    client.create_topic(topic, compression_type="gzip")
    batch = build_batch(RECORDS, codec=Codec.GZIP)
    client.append(topic, batch)
    assert stored(client, topic)[16:] == batch[16:]


def test_pipelined_batches_of_an_idempotent_producer_stay_in_order(client: RawClient, topic: str) -> None:
    """Some have to be compressed again and some not; each of the first is larger than all of the others."""
    client.create_topic(topic, compression_type="zstd")
    producer = {"producer_id": client.new_producer_id(), "producer_epoch": 0}
    batches = [
        batch_of(b"%d" % n * (1 if n % 2 else 200_000), base_sequence=n, codec=Codec(4 * (n % 2)), **producer)
        for n in range(20)
    ]
    for batch in [*batches, batches[-1]]:  # the last is sent again
        client.send(apis.PRODUCE, 9, **produce_body({(topic, 0): batch}))
    offsets = [client.receive_produced().base_offset for _ in range(21)]
    assert offsets == [*range(20), 19]
    assert [(header.base_sequence, header.codec) for header in headers(client, topic)] == [
        (n, Codec.ZSTD) for n in range(20)
    ]


def test_a_transaction_is_compressed_again_and_read_when_it_is_committed(
    skep_broker: EmbeddedBroker, client: RawClient, topic: str
) -> None:
    client.create_topic(topic, compression_type="lz4")
    producer = Producer(
        {"bootstrap.servers": skep_broker.bootstrap_servers, "transactional.id": topic, "compression.type": "gzip"}
    )
    producer.init_transactions()
    for _ in range(2):
        producer.begin_transaction()
        for n in range(100):
            producer.produce(topic, b"%d" % n * 20)
        producer.commit_transaction()
    assert {header.codec for header in headers(client, topic) if not header.is_control} == {Codec.LZ4}
    committed = client.fetch_one(Want(topic, 0), isolation_level=1)
    values = [record.value for record in records_in(committed.records)]
    assert values[:100] == [b"%d" % n * 20 for n in range(100)]


def test_the_type_can_be_changed_and_old_batches_stay_as_they_are(client: RawClient, topic: str) -> None:
    client.create_topic(topic)
    client.append(topic, batch_of(b"as sent"))
    change = {"name": "compression.type", "config_operation": 0, "value": "snappy"}
    resource = {"resource_type": 2, "resource_name": topic, "configs": [change]}
    [response] = client.ask(apis.INCREMENTAL_ALTER_CONFIGS, 1, resources=[resource], validate_only=False).responses
    assert response.error_code is ErrorCode.none
    client.append(topic, batch_of(b"again"))
    assert [header.codec for header in headers(client, topic)] == [Codec.NONE, Codec.SNAPPY]


def test_a_compacted_topic_checks_the_keys_before_it_compresses(client: RawClient, topic: str) -> None:
    client.create_topic(topic, compression_type="gzip", cleanup_policy="compact")
    refused = client.produce(topic, build_batch([NewRecord(b"k", b"v"), NewRecord(None, b"v")]))
    assert [one.batch_index for one in refused.record_errors] == [1]
    client.append(topic, build_batch([NewRecord(b"k", b"v")] * 2000))
    assert read_header(stored(client, topic)).codec == Codec.GZIP


def test_a_batch_that_decompresses_to_too_much_is_refused(client: RawClient, topic: str) -> None:
    client.create_topic(topic, compression_type="gzip")
    bomb = build_batch([NewRecord(b"k", bytes(LARGEST_RECOMPRESSED))], codec=Codec.ZSTD)
    refused = client.produce(topic, bomb)
    assert refused.error_code is ErrorCode.corrupt_message
    assert "unpack to more than" in refused.error_message
    assert client.append(topic, batch_of(b"the next")) == 0


def test_a_batch_that_is_too_large_when_it_is_decompressed_is_refused(client: RawClient, topic: str) -> None:
    client.create_topic(topic, compression_type="uncompressed", max_message_bytes=10_000)
    refused = client.produce(topic, batch_of(bytes(20_000), codec=Codec.ZSTD))
    assert refused.error_code is ErrorCode.message_too_large


def test_a_client_that_may_not_send_zstd_may_write_to_a_topic_that_stores_it(client: RawClient, topic: str) -> None:
    client.create_topic(topic, compression_type="zstd")
    assert client.produce(topic, batch_of(b"plain"), version=6).error_code is ErrorCode.none
    client.create_topic(f"{topic}-plain", compression_type="uncompressed")
    zstd = batch_of(b"zstd", codec=Codec.ZSTD)
    assert client.produce(f"{topic}-plain", zstd, version=6).error_code is ErrorCode.unsupported_compression_type
