"""The options of writing; no Spark session."""

import pytest
from pyspark.sql.types import StructType

from pyspark_skep.source import DefaultSource
from pyspark_skep.write.write_options import SPARKS_OWN, warn_of_ignored, write_options
from skep.base.errors import OptionError
from skep.records.compression import Codec

SERVERS = {"kafka.bootstrap.servers": "localhost:9092"}


def test_options_are_known_whatever_their_case() -> None:
    options = write_options(
        {**SERVERS, "TOPIC": "orders", "Kafka.Compression.Type": "zstd", "delivery": "at-least-once"}
    )
    assert options.topic == "orders"
    assert options.codec is Codec.ZSTD
    assert not options.is_exactly_once


def test_exactly_once_is_what_who_says_nothing_gets() -> None:
    assert write_options(SERVERS).is_exactly_once


def test_what_spark_hands_on_of_its_own_is_let_through() -> None:
    assert write_options({**SERVERS, **dict.fromkeys(SPARKS_OWN, "x")}) == write_options(SERVERS)
    # As Spark spells them.
    assert write_options({**SERVERS, "checkpointlocation": "x", "queryname": "x"}) == write_options(SERVERS)


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({}, "kafka.bootstrap.servers must be given"),
        ({"kafka.bootstrap.servers": "host:port"}, "not an address like HOST:PORT"),
        ({**SERVERS, "delivery": "exactly-twice"}, "must be one of exactly-once, at-least-once"),
        ({**SERVERS, "kafka.acks": "0"}, "kafka.acks=0: only all is supported"),
        ({**SERVERS, "kafka.enable.idempotence": "false"}, "duplicates rows"),
        ({**SERVERS, "kafka.transactional.id": "x"}, "kafka.transactional.id is not supported: every task has its own"),
        ({**SERVERS, "kafka.value.serializer": "x"}, "kafka.value.serializer is not supported"),
        ({**SERVERS, "kafka.compression.type": "brotli"}, "kafka.compression.type=brotli"),
        ({**SERVERS, "kafka.transaction.timeout.ms": "soon"}, "kafka.transaction.timeout.ms=soon"),
        ({**SERVERS, "kafka.security.protocol": "SASL_SSL"}, "needs sasl.mechanism"),
        ({**SERVERS, "kafka.metadata.max.age.ms": "5"}, "kafka.metadata.max.age.ms is not supported"),
        ({**SERVERS, "tpoic": "x"}, "tpoic: there is no such option; did you mean topic?"),
        ({**SERVERS, "subscribe": "x"}, "it is an option of reads"),
    ],
)
def test_what_means_nothing_is_refused_by_name(given: dict[str, str], problem: str) -> None:
    with pytest.raises(OptionError) as refused:
        write_options(given)
    assert problem in str(refused.value)


@pytest.mark.parametrize(
    ("given", "warning"),
    [
        ({"kafka.linger.ms": "5"}, "option kafka.linger.ms has no effect: rows arrive in batches of thousands"),
        ({"path": "x"}, "option path has no effect: rows are written to the topic"),
        ({"includeheaders": "false"}, "option includeHeaders has no effect: a column headers is always written"),
        (
            {"delivery": "at-least-once", "kafka.transaction.timeout.ms": "5000"},
            "option kafka.transaction.timeout.ms has no effect: delivery=at-least-once uses no transaction",
        ),
    ],
)
def test_what_is_let_through_without_effect_is_named_in_one_warning(
    caplog: pytest.LogCaptureFixture, given: dict[str, str], warning: str
) -> None:
    warn_of_ignored({**SERVERS, **given})
    assert [record.getMessage().startswith(warning) for record in caplog.records] == [True]


def test_options_that_have_an_effect_come_without_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    warn_of_ignored(
        {**SERVERS, "checkpointLocation": "x", "includeHeaders": "true", "kafka.transaction.timeout.ms": "5000"}
    )
    warn_of_ignored({**SERVERS, "delivery": "at-least-once"})
    assert caplog.text == ""


def test_a_write_warns_once_and_a_stream_in_its_first_micro_batch(caplog: pytest.LogCaptureFixture) -> None:
    # Without a topic and a transaction no broker is asked.
    given = {**SERVERS, "delivery": "at-least-once", "kafka.linger.ms": "5"}
    rows = StructType().add("topic", "string").add("value", "string")
    DefaultSource(given).writer(rows, False)
    assert caplog.text.count("kafka.linger.ms has no effect") == 1
    for epoch in range(3):
        DefaultSource(given).streamWriter(rows, False).commit([], epoch)
    assert caplog.text.count("kafka.linger.ms has no effect") == 2
