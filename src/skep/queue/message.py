"""The record that a handler gets, and the exceptions by which a handler rejects or delays it."""

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import confluent_kafka

LONGEST_REASON = 1000
"""In characters. A reason is stored with the state of its record, and becomes a header of its dead letter."""


@dataclass(frozen=True, slots=True)
class Message:
    """A record. ``delivery_count`` is 1 when it is delivered for the first time."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    timestamp_ms: int
    delivery_count: int = 1

    def header(self, name: str) -> bytes | None:
        """Returns the value of the last header with that name, None if there is none."""
        return next((value for header, value in reversed(self.headers) if header == name), None)


def message_of(record: "confluent_kafka.Message") -> Message:
    return Message(
        topic=record.topic() or "",
        partition=_number(record.partition()),
        offset=_number(record.offset()),
        key=record.key(),
        value=record.value(),
        headers=_headers(record),
        timestamp_ms=record.timestamp()[1],
        delivery_count=record.delivery_count() or 1,
    )


def _number(value: int | None) -> int:
    return -1 if value is None else value


def _headers(record: "confluent_kafka.Message") -> tuple[tuple[str, bytes | None], ...]:
    # librdkafka's headers are this list; other types are only taken by its producer.
    found: Any = record.headers()
    return tuple(found or ())


class Reject(Exception):
    """Raised by a handler: this record never succeeds. It goes to the dead letters of the group, if it has any."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = reason


class RetryLater(Exception):
    """Raised by a handler: deliver this record again, not before ``seconds`` have passed."""

    def __init__(self, seconds: float, reason: str = "") -> None:
        if seconds < 0:
            raise ValueError(f"seconds={seconds}: must not be negative")
        super().__init__(reason)
        self.seconds = seconds
        self.reason = reason


class Outcome(Enum):
    ACCEPT = "accept"
    RETRY = "retry"
    REJECT = "reject"


class Verdict(NamedTuple):
    """The result of one delivery. ``delay_ms`` is None where the group's own delay applies."""

    outcome: Outcome
    reason: str = ""
    delay_ms: int | None = None


ACCEPTED = Verdict(Outcome.ACCEPT)


def verdict_of(error: BaseException) -> Verdict:
    """Returns the verdict for a handler that raised ``error``."""
    if isinstance(error, Reject):
        return Verdict(Outcome.REJECT, error.reason[:LONGEST_REASON] or "rejected")
    if isinstance(error, RetryLater):
        return Verdict(Outcome.RETRY, error.reason[:LONGEST_REASON], round(error.seconds * 1000))
    return Verdict(Outcome.RETRY, describe(error))


def describe(error: BaseException) -> str:
    """Returns ``ValueError: no such customer``."""
    return f"{type(error).__name__}: {error}".removesuffix(": ")[:LONGEST_REASON]
