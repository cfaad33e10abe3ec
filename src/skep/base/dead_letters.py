"""A dead letter: the record in a dead-letter topic that says which record a share group has given up, and why.

The headers ``__dlq.errors.*`` and their texts are Kafka's (KIP-1191). Skep adds ``skep.dlq.*``. With a copy, the letter
has the key, the value and the headers of the record, followed by these headers. A record that was itself a dead letter
has the names twice; the last ones count.

The topic also has *marks*: records without key and value that say which letters were redriven (``RedriveMark``).
"""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

TOPIC = "__dlq.errors.topic"
PARTITION = "__dlq.errors.partition"
OFFSET = "__dlq.errors.offset"
GROUP = "__dlq.errors.group"
DELIVERY_COUNT = "__dlq.errors.delivery.count"
MESSAGE = "__dlq.errors.message"

TOPIC_ID = "skep.dlq.topic.id"
TIMESTAMP = "skep.dlq.timestamp"
"""The timestamp of the record, in milliseconds. That of the letter is the time at which it was written."""
COPY = "skep.dlq.copy"
"""Whether the letter has a copy of the record: ``copied``, or why it has none."""

REDRIVE = "skep.dlq.redrive"
"""The header of a mark."""

NOTES_PREFIX = "skep.dlq."
"""Of the name of a group that notes, as offsets of the source, which letters were written last."""

COPIED = "copied"
NOT_ASKED = "off"
DELETED = "the record is no longer in the log"
MAX_REASON_CHARACTERS = 1_000

_NAMES = (TOPIC, PARTITION, OFFSET, GROUP, DELIVERY_COUNT, MESSAGE, TOPIC_ID, TIMESTAMP, COPY)

Headers = Sequence[tuple[str, bytes | None]]


_LONGEST_NAME = 200


def short_name(group: str) -> str:
    """Returns the name of a group for use in names of others, such as transactional ids, which have limits too."""
    return group if len(group.encode()) <= _LONGEST_NAME else hashlib.sha256(group.encode()).hexdigest()


def headers_of(message: Any) -> list[tuple[str, bytes | None]]:
    """Returns the headers of a message of confluent-kafka, whose types allow more than it returns."""
    return message.headers() or []


class DeadLetter(NamedTuple):
    """What the headers of a dead letter say. ``delivery_count`` is -1 and ``timestamp`` -1 if they are not known."""

    group: str
    topic: str
    partition: int
    offset: int
    delivery_count: int = -1
    reason: str = ""
    topic_id: str = ""
    timestamp: int = -1
    copy: str = NOT_ASKED

    @property
    def has_copy(self) -> bool:
        return self.copy == COPIED

    def headers(self) -> list[tuple[str, bytes | None]]:
        texts = {
            TOPIC: self.topic,
            PARTITION: str(self.partition),
            OFFSET: str(self.offset),
            GROUP: self.group,
            DELIVERY_COUNT: str(self.delivery_count),
            MESSAGE: self.reason[:MAX_REASON_CHARACTERS],
            TOPIC_ID: self.topic_id,
            TIMESTAMP: str(self.timestamp),
            COPY: self.copy,
        }
        return [(name, text.encode()) for name, text in texts.items() if text not in ("", "-1")]


def dead_letter(headers: Iterable[tuple[str, bytes | None]]) -> DeadLetter | None:
    """Returns what the headers say, None if the record is no dead letter. Letters that Kafka wrote are understood."""
    found = {name: value for name, value in headers if name in _NAMES}
    texts = {name: (value or b"").decode(errors="replace") for name, value in found.items()}
    if not all(texts.get(name) for name in (GROUP, TOPIC, PARTITION, OFFSET)):
        return None
    partition, offset = _number(texts, PARTITION), _number(texts, OFFSET)
    if partition < 0 or offset < 0:
        return None
    return DeadLetter(
        group=texts[GROUP],
        topic=texts[TOPIC],
        partition=partition,
        offset=offset,
        delivery_count=_number(texts, DELIVERY_COUNT),
        reason=texts.get(MESSAGE, ""),
        topic_id=texts.get(TOPIC_ID, ""),
        timestamp=_number(texts, TIMESTAMP),
        copy=texts.get(COPY, NOT_ASKED),
    )


def original_headers(headers: Headers) -> list[tuple[str, bytes | None]]:
    """Returns the headers of the record that a dead letter has a copy of: those before the letter's own."""
    left = set(_NAMES)
    kept = []
    for name, value in reversed(headers):
        if name in left:
            left.discard(name)
        else:
            kept.append((name, value))
    return kept[::-1]


OffsetRanges = Sequence[tuple[int, int]]


class RedriveMark(NamedTuple):
    """Says which letters of its own partition are redriven. ``begun`` is written before records are opened again in
    place, ``done`` after; letters whose copies were produced again have ``done`` in the same transaction."""

    group: str
    is_done: bool
    letters: OffsetRanges
    """Their offsets in the dead-letter topic."""
    topic: str
    partition: int
    offsets: OffsetRanges
    """Those of the records."""
    generation: str = ""
    """The generation of the share state that is to be changed, if it was begun."""
    topic_id: str = ""
    """That of the topic whose records are opened. A later topic of the same name has other records."""

    def headers(self) -> list[tuple[str, bytes | None]]:
        return [(REDRIVE, json.dumps(self._asdict()).encode())]


def redrive_mark(headers: Iterable[tuple[str, bytes | None]]) -> RedriveMark | None:
    """Returns the mark, None for any other record."""
    text = next((value for name, value in headers if name == REDRIVE), None)
    if text is None:
        return None
    try:
        fields = json.loads(text)
        for name in ("letters", "offsets"):
            fields[name] = [(int(first), int(last)) for first, last in fields[name]]
        return RedriveMark(**fields)
    except (ValueError, TypeError, KeyError):
        return None  # anybody can write to a dead-letter topic


def _number(texts: Mapping[str, str], name: str) -> int:
    """Returns -1 for what is no number: anybody can write to a dead-letter topic."""
    text = texts.get(name, "")
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 20 else -1
