"""Positions: where a read starts or ends, as the options give it: earliest, latest, by offsets or by time.

``lookup.py`` resolves a position to offsets, with requests to brokers.
"""

import dataclasses
import json
from typing import Any

from skep.base.errors import OptionError
from skep.base.ids import TopicPartition

EARLIEST, LATEST = -2, -1
"""Kafka's numbers for the two ends of a log, in the options' JSON and in ListOffsets."""

TOPIC_ID = "id"
"""The JSON key of the topic's id in the offsets of a stream, beside the keys of partitions."""
STARTED_AT = "started at"
"""The JSON key of the offsets at which a stream's first micro-batch starts, in the offsets at which it ends."""


@dataclasses.dataclass(frozen=True)
class AtEnd:
    """One end of every log: EARLIEST or LATEST."""

    end: int


@dataclasses.dataclass(frozen=True)
class AtOffsets:
    """An offset, EARLIEST or LATEST for each partition. ``topic_ids`` holds the topic ids that were given."""

    option: str
    offsets: dict[TopicPartition, int]
    topic_ids: dict[str, str]


@dataclasses.dataclass(frozen=True)
class AtTime:
    """The first record of every partition at or after a time."""

    option: str
    timestamp_ms: int


@dataclasses.dataclass(frozen=True)
class AtTimes:
    """The first record at or after a time that is given for each partition."""

    option: str
    timestamps_ms: dict[TopicPartition, int]


Position = AtEnd | AtOffsets | AtTime | AtTimes


def choose_starting(timestamp: str, by_timestamp: str, offsets: str, *, streaming: bool) -> Position:
    """Returns the starting position from three options, in Spark's order of precedence."""
    default = AtEnd(LATEST if streaming else EARLIEST)
    position = _choose("starting", timestamp, by_timestamp, offsets, default)
    if not streaming:
        _refuse_end(position, LATEST, "startingOffsets: a batch cannot start at latest, it would read nothing")
    return position


def choose_ending(timestamp: str, by_timestamp: str, offsets: str) -> Position:
    position = _choose("ending", timestamp, by_timestamp, offsets, AtEnd(LATEST))
    _refuse_end(position, EARLIEST, "endingOffsets: a batch cannot end at earliest, it would read nothing")
    return position


def _choose(side: str, timestamp: str, by_timestamp: str, offsets: str, default: Position) -> Position:
    if timestamp:
        return AtTime(f"{side}Timestamp", _timestamp(f"{side}Timestamp", timestamp))
    if by_timestamp:
        name = f"{side}OffsetsByTimestamp"
        found, _ = _by_partition(name, by_timestamp)
        for one, value in found.items():
            if value < 0:
                raise OptionError(f"{name}: {value} of {one} is not a time in milliseconds")
        return AtTimes(name, found)
    name = f"{side}Offsets"
    word = offsets.strip().lower()
    if word in ("earliest", "latest"):
        return AtEnd(EARLIEST if word == "earliest" else LATEST)
    if not word:
        return default
    if not word.startswith("{"):
        raise OptionError(f'{name}={offsets}: expected earliest, latest or JSON like {{"orders": {{"0": 23}}}}')
    found, topic_ids = _by_partition(name, offsets)
    for one, offset in found.items():
        if offset < EARLIEST:
            raise OptionError(f"{name}: {offset} of {one} is not an offset, nor -2 (earliest) or -1 (latest)")
    return AtOffsets(name, found, topic_ids)


def _refuse_end(position: Position, end: int, text: str) -> None:
    if isinstance(position, AtEnd) and position.end == end:
        raise OptionError(text)
    if isinstance(position, AtOffsets):
        for one, offset in position.offsets.items():
            if offset == end:
                raise OptionError(f"{text} ({end} is given for {one})")


def _timestamp(name: str, text: str) -> int:
    if not (text.strip().isascii() and text.strip().isdecimal()):
        raise OptionError(f"{name}={text}: expected a time in milliseconds since 1970")
    return int(text)


def parse_assign(text: str) -> list[TopicPartition]:
    """Parses ``{"orders": [0, 1]}``. Returns the partitions sorted, without duplicates."""
    topics = _json_object("assign", text)
    found = set()
    for topic, partitions in topics.items():
        if not isinstance(partitions, list) or not all(_is_number(entry) and entry >= 0 for entry in partitions):
            raise OptionError(f"assign: expected a list of partition numbers for '{topic}', like [0, 1]")
        found |= {TopicPartition(topic, partition) for partition in partitions}
    if not found:
        raise OptionError("assign: it names no partition")
    return sorted(found)


def _by_partition(name: str, text: str) -> tuple[dict[TopicPartition, int], dict[str, str]]:
    offsets: dict[TopicPartition, int] = {}
    topic_ids: dict[str, str] = {}
    for topic, partitions in _json_object(name, text).items():
        if not isinstance(partitions, dict):
            raise OptionError(f"{name}: expected partitions and numbers for '{topic}', like {{\"0\": 23}}")
        for partition, value in partitions.items():
            if partition == TOPIC_ID and isinstance(value, str):
                topic_ids[topic] = value
            elif partition == STARTED_AT and isinstance(value, dict):
                continue
            elif not (partition.isascii() and partition.isdecimal() and _is_number(value)):
                raise OptionError(f"{name}: {partition!r}: {value!r} of '{topic}' is not a partition and a number")
            else:
                offsets[TopicPartition(topic, int(partition))] = value
    return offsets, topic_ids


def _json_object(name: str, text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise OptionError(f"{name}={text}: not JSON ({error})") from None
    if not isinstance(value, dict):
        raise OptionError(f"{name}={text}: expected a JSON object with topics as its keys")
    return value


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
