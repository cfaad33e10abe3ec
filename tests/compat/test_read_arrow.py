"""``read_arrow`` and librdkafka's consumer, on the same records that Hypothesis thinks of, are of one opinion."""

import contextlib
import time
import uuid
from typing import NamedTuple

from confluent_kafka import TIMESTAMP_CREATE_TIME, TopicPartition
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import skep
from skep.testing import EmbeddedBroker
from tests.compat.clients import CODECS, PATIENCE_S, confluent_consumer, confluent_producer, take
from tests.raw_client import RawClient

PARTITIONS = 2
Headers = list[tuple[str, bytes | None]] | None


class Sent(NamedTuple):
    partition: int
    key: bytes | None
    value: bytes | None
    timestamp_ms: int
    headers: Headers


# Those that repeat themselves are worth compressing.
fields = st.none() | st.binary(max_size=40) | st.builds(bytes.__mul__, st.binary(max_size=8), st.integers(0, 400))
# librdkafka takes a header's name as a C string.
names = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=8)
sent = st.builds(
    Sent,
    st.integers(0, PARTITIONS - 1),
    fields,
    fields,
    # 0 is how its producer says "now", and the broker takes no time that is yet to come.
    st.integers(1, int(time.time() * 1000)),
    st.none() | st.lists(st.tuples(names, st.none() | st.binary(max_size=20)), min_size=1, max_size=4),
)


def write(bootstrap: str, topic: str, records: list[Sent], codec: str, batch_records: int) -> None:
    producer = confluent_producer(bootstrap, **{"compression.type": codec, "batch.num.messages": batch_records})
    for partition, key, value, timestamp_ms, headers in records:
        producer.produce(topic, value, key, partition=partition, timestamp=timestamp_ms, headers=headers)
    assert producer.flush(PATIENCE_S) == 0


def by_librdkafka(bootstrap: str, topic: str, count: int) -> list[tuple[int, Sent]]:
    """Each record with its offset, partition by partition."""
    consumer = confluent_consumer(bootstrap)
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)])
    with contextlib.closing(consumer):
        messages = take(consumer, count)
    assert {message.timestamp()[0] for message in messages} <= {TIMESTAMP_CREATE_TIME}
    found = [
        (one.offset(), Sent(one.partition(), one.key(), one.value(), one.timestamp()[1], one.headers()))
        for one in messages
    ]
    return sorted(found, key=lambda entry: (entry[1].partition, entry[0]))


def by_columns(bootstrap: str, topic: str, max_rows: int) -> list[tuple[int, Sent]]:
    table = skep.read_arrow(bootstrap, topic, headers=True, max_rows=max_rows)
    table.validate(full=True)
    return [
        (
            row["offset"],
            Sent(
                row["partition"],
                row["key"],
                row["value"],
                round(row["timestamp"].timestamp() * 1000),
                row["headers"] and [(header["key"], header["value"]) for header in row["headers"]],
            ),
        )
        for row in table.to_pylist()
    ]


@settings(max_examples=20, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(st.lists(sent, max_size=30), st.sampled_from(CODECS), st.integers(1, 10), st.integers(1, 20))
def test_columns_have_what_librdkafka_reads(
    skep_broker: EmbeddedBroker, records: list[Sent], codec: str, batch_records: int, max_rows: int
) -> None:
    bootstrap, topic = skep_broker.bootstrap_servers, f"columns-{uuid.uuid4().hex}"
    with RawClient(bootstrap) as client:
        client.create_topic(topic, partitions=PARTITIONS)
    write(bootstrap, topic, records, codec, batch_records)
    read = by_columns(bootstrap, topic, max_rows)
    assert read == by_librdkafka(bootstrap, topic, len(records))
    # The two could be wrong together.
    assert [record for _, record in read] == sorted(records, key=lambda record: record.partition)
