"""The bytes of the headers, as Spring for Apache Kafka writes and reads them."""

import pytest

from skep.queue.message import Message
from skep.queue.reply_headers import (
    ReplyAddress,
    error_in,
    reply_address,
    reply_headers,
    request_headers,
)

ID = bytes(range(16))


def message(*headers: tuple[str, bytes | None]) -> Message:
    return Message("prices", 0, 0, None, b"", headers, 0)


def test_a_request_has_the_headers_of_a_replying_kafka_template() -> None:
    """ReplyingKafkaTemplate: the topic in UTF-8, ByteBuffer.putInt of the partition, the 16 bytes of the UUID."""
    assert request_headers(ReplyAddress("prices.replies", 258, ID)) == [
        ("kafka_replyTopic", b"prices.replies"),
        ("kafka_replyPartition", b"\x00\x00\x01\x02"),
        ("kafka_correlationId", ID),
    ]
    assert dict(request_headers(ReplyAddress("ö", None, ID))) == {
        "kafka_replyTopic": "ö".encode(),
        "kafka_correlationId": ID,
    }


def test_the_headers_of_a_request_are_its_address() -> None:
    address = ReplyAddress("prices.replies", 3, ID)
    assert reply_address(message(*request_headers(address))) == address  # type: ignore[arg-type]
    assert reply_address(message(("kafka_replyTopic", b"a"))) == ReplyAddress("a", None, None)
    assert reply_address(message(("kafka_correlationId", ID))) is None


@pytest.mark.parametrize(
    "header",
    [
        ("kafka_replyPartition", b"\x00\x01"),
        ("kafka_replyPartition", b"\xff\xff\xff\xff"),
        ("kafka_replyTopic", b"__consumer_offsets"),
        ("kafka_replyTopic", b"\xff"),
    ],
)
def test_an_address_that_makes_no_sense_is_refused(header: tuple[str, bytes]) -> None:
    with pytest.raises(ValueError):
        reply_address(message(("kafka_replyTopic", b"a"), header))


def test_an_answer_has_the_correlation_id_of_its_request() -> None:
    assert reply_headers(ReplyAddress("a", 0, b"any bytes")) == [("kafka_correlationId", b"any bytes")]
    assert reply_headers(ReplyAddress("a", 0, None)) == []


def test_an_exception_travels_in_spring_s_headers_of_exceptions() -> None:
    class Refused(Exception):
        pass

    found = dict(reply_headers(ReplyAddress("a", 0, ID), Refused("too late")))
    assert found["kafka_exception-message"] == b"too late"
    name = found["kafka_exception-fqcn"]
    assert isinstance(name, bytes)
    assert name.endswith(b"Refused")
    assert dict(reply_headers(ReplyAddress("a", 0, ID), KeyError("x")))["kafka_exception-fqcn"] == b"KeyError"
    assert error_in(message(("kafka_exception-fqcn", b"java.lang.IllegalStateException"))) == (
        "java.lang.IllegalStateException",
        "",
    )
    assert error_in(message(("kafka_exception-message", b"\xff"))) == ("", "�")
    assert error_in(message(("kafka_correlationId", ID))) is None
