import pytest
from confluent_kafka import KafkaError, Message

from skep.cli.failures import CommandError
from skep.cli.records.topic_reader import Place, Span, Start, _Reader, start_offset

NONE_AFTER = -1


@pytest.mark.parametrize(
    ("start", "at_time", "offset"),
    [
        (Start(Place.BEGINNING), NONE_AFTER, 10),
        (Start(Place.END), NONE_AFTER, 50),
        (Start(Place.OFFSET, 42), NONE_AFTER, 42),
        (Start(Place.OFFSET, -3), NONE_AFTER, 47),
        (Start(Place.OFFSET, -1000), NONE_AFTER, 10),
        (Start(Place.OFFSET, 3), NONE_AFTER, 10),
        (Start(Place.OFFSET, 70), NONE_AFTER, 50),
        (Start(Place.TIME, 1_000), 33, 33),
        (Start(Place.TIME, 1_000), NONE_AFTER, 50),
    ],
)
def test_a_start_becomes_an_offset_that_the_partition_holds(start: Start, at_time: int, offset: int) -> None:
    assert start_offset(start, earliest=10, latest=50, at_time=at_time) == offset


def message(partition: int, offset: int) -> Message:
    return Message(topic="orders", partition=partition, offset=offset, value=b"")


def end_of_partition(partition: int, offset: int) -> Message:
    return Message(topic="orders", partition=partition, offset=offset, error=KafkaError(KafkaError._PARTITION_EOF))


def offsets(messages: list[Message]) -> list[tuple[int | None, int | None]]:
    return [(m.partition(), m.offset()) for m in messages]


def test_reading_ends_with_the_last_offset_of_every_span() -> None:
    reader = _Reader({"orders": {0: Span(0, 2), 1: Span(5, 6)}})
    assert offsets(reader.take([message(0, 0), message(1, 5)])) == [(0, 0), (1, 5)]
    assert reader.open == {("orders", 0)}
    assert offsets(reader.take([message(0, 1)])) == [(0, 1)]
    assert not reader.open


def test_what_arrived_after_the_end_was_noted_is_not_shown() -> None:
    reader = _Reader({"orders": {0: Span(0, 2), 1: Span(0, 1)}})
    assert offsets(reader.take([message(0, 0), message(0, 1), message(0, 2), message(0, 3)])) == [(0, 0), (0, 1)]
    assert reader.open == {("orders", 1)}


def test_the_end_of_the_partition_closes_a_span_whose_last_offsets_hold_no_message() -> None:
    reader = _Reader({"orders": {0: Span(0, 5)}})
    reader.take([message(0, 3), end_of_partition(0, 5)])
    assert not reader.open


def test_following_goes_past_the_end_of_the_partition() -> None:
    reader = _Reader({"orders": {0: Span(0, None)}})
    assert offsets(reader.take([message(0, 0), end_of_partition(0, 1), message(0, 1)])) == [(0, 0), (0, 1)]
    assert reader.open


def test_an_empty_span_is_closed_from_the_start() -> None:
    assert not _Reader({"orders": {0: Span(7, 7)}}).open


def test_an_error_from_the_broker_ends_the_reading_with_its_reason() -> None:
    denied = KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED, "you may not")
    with pytest.raises(CommandError, match="orders-0: you may not"):
        _Reader({"orders": {0: Span(0, None)}}).take([Message(topic="orders", partition=0, error=denied)])


@pytest.mark.parametrize("code", [KafkaError.INVALID_GROUP_ID, KafkaError.GROUP_AUTHORIZATION_FAILED])
def test_a_reader_without_a_group_needs_no_coordinator(code: int) -> None:
    reader = _Reader({"orders": {0: Span(0, 2)}})
    assert reader.take([Message(error=KafkaError(code)), message(0, 0)])
    assert reader.open == {("orders", 0)}
