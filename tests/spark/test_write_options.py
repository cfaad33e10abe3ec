"""The options of writing; no Spark session."""

import pytest

from pyspark_skep.write_options import write_options
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
    assert write_options({**SERVERS, "checkpointlocation": "/somewhere", "path": "x"}) == write_options(SERVERS)


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({}, "kafka.bootstrap.servers must be given"),
        ({"kafka.bootstrap.servers": "host:port"}, "not an address like HOST:PORT"),
        ({**SERVERS, "delivery": "exactly-twice"}, "must be one of exactly-once, at-least-once"),
        ({**SERVERS, "kafka.acks": "0"}, "kafka.acks=0: only all is there"),
        ({**SERVERS, "kafka.enable.idempotence": "false"}, "doubles rows"),
        ({**SERVERS, "kafka.transactional.id": "x"}, "kafka.transactional.id is not supported: every task has an id"),
        ({**SERVERS, "kafka.value.serializer": "x"}, "kafka.value.serializer is not supported"),
        ({**SERVERS, "kafka.compression.type": "brotli"}, "kafka.compression.type=brotli"),
        ({**SERVERS, "kafka.transaction.timeout.ms": "soon"}, "kafka.transaction.timeout.ms=soon"),
        ({**SERVERS, "kafka.sasl.mechanism": "PLAIN"}, "only PLAINTEXT connections are there"),
        ({**SERVERS, "kafka.metadata.max.age.ms": "5"}, "kafka.metadata.max.age.ms is not supported"),
        ({**SERVERS, "tpoic": "x"}, "tpoic: there is no such option; did you mean topic?"),
        ({**SERVERS, "subscribe": "x"}, "that is an option of reading"),
    ],
)
def test_what_means_nothing_is_refused_by_name(given: dict[str, str], problem: str) -> None:
    with pytest.raises(OptionError) as refused:
        write_options(given)
    assert problem in str(refused.value)
