"""What a held partition does with a record: how it changes what waits, and what is written when it is due. Pure.

Every change of what waits is a record in the held topic, under the same key: a new version, or a tombstone. So the
newest record of a key says everything, which is all that compaction keeps.
"""

from collections.abc import Callable, Iterable
from typing import NamedTuple

from skep.worker.held.held_index import Entry
from skep.worker.held.plan import (
    AT_ONCE,
    CHECKED,
    COMMIT,
    DELIVER_KEY,
    DUE_AT,
    FIRED_AT,
    REFUSED,
    RELEASED,
    Header,
    Kind,
    Rules,
    check_in,
    passed_on,
    plan_of,
    schedule_in,
    texts_in,
)

CHECK_ATTEMPT, HELD_TOPIC, HELD_PARTITION = "check-attempt", "held-topic", "held-partition"


class HeldRecord(NamedTuple):
    """A record of the held topic."""

    offset: int
    leader_epoch: int
    timestamp_ms: int
    key: bytes
    value: bytes | None
    headers: tuple[Header, ...]


class Output(NamedTuple):
    """A record to be written."""

    topic: str
    key: bytes
    value: bytes | None
    headers: list[Header]


class Firing(NamedTuple):
    """What a due entry becomes, in one transaction: the outputs, and in the held topic its next version.

    ``next_headers`` are those of the next version, which has the same value; None for a tombstone.
    """

    entry: Entry
    outputs: list[Output]
    next_headers: list[Header] | None


def entry_after(record: HeldRecord, waiting: Callable[[bytes], Entry | None], rules: Rules) -> Entry | None:
    """Returns what waits under the key after this record; None for nothing. ``waiting`` finds what waits before."""
    if record.value is None and all(name != COMMIT for name, _ in record.headers):
        return None
    plan = plan_of(record.headers, record.timestamp_ms, rules)
    if plan.kind is Kind.COMMIT:
        return _committed(record, waiting(record.key))
    offset, key, timestamp_ms = record.offset, record.key, record.timestamp_ms
    return Entry(offset, key, plan.due_ms, plan.kind, timestamp_ms, record.headers, record.value, plan.rate)


def changes_by(
    records: Iterable[HeldRecord], waiting: Callable[[bytes], Entry | None], rules: Rules
) -> dict[bytes, Entry | None]:
    """Returns what waits under each key after these records, in the order of the log."""
    changes: dict[bytes, Entry | None] = {}

    def waiting_now(key: bytes) -> Entry | None:
        return changes[key] if key in changes else waiting(key)

    for record in records:
        changes[record.key] = entry_after(record, waiting_now, rules)
    return changes


def _committed(record: HeldRecord, waiting: Entry | None) -> Entry:
    offset, key, timestamp_ms = record.offset, record.key, record.timestamp_ms
    if waiting is None or waiting.kind is Kind.INVALID:
        # A second commit, or one without a half message: it stays as invalid, so that nothing disappears silently.
        return Entry(offset, key, None, Kind.INVALID, timestamp_ms, record.headers, record.value)
    earlier = [header for header in waiting.headers if header[0] == DELIVER_KEY] + passed_on(waiting.headers)
    headers = (*earlier, *record.headers)
    return Entry(offset, key, AT_ONCE, Kind.COMMIT, timestamp_ms, headers, record.value or waiting.value)


def why_invalid(entry: Entry, rules: Rules) -> str:
    """Returns what is wrong with an entry of the kind INVALID."""
    return plan_of(entry.headers, entry.timestamp_ms, rules).reason or "a commit, and nothing waits under its key"


def fire(entry: Entry, held_topic: str, partition: int, target: str, now_ms: int) -> Firing:
    """Returns what is to be written for an entry that is due."""
    texts, headers = texts_in(entry.headers), passed_on(entry.headers)
    if entry.kind is Kind.HALF:
        check = check_in(texts)
        if check.done >= check.attempts:
            return Firing(entry, [], None)
        asked = check.done + 1
        headers += [_text(CHECK_ATTEMPT, asked), _text(HELD_TOPIC, held_topic), _text(HELD_PARTITION, partition)]
        question = Output(check.topic, entry.key, entry.value, headers)
        return Firing(entry, [question], _with(entry.headers, _text(CHECKED, f"{asked} {now_ms}")))
    if entry.kind is not Kind.COMMIT:
        headers.append(_text(DUE_AT, entry.due_ms))
    output = Output(target, delivery_key(entry), entry.value, headers)
    if entry.kind is not Kind.REPEAT:
        return Firing(entry, [output], None)
    assert entry.due_ms is not None
    last_ms = schedule_in(texts).last_until(entry.due_ms, now_ms)
    return Firing(entry, [output], _with(entry.headers, _text(FIRED_AT, last_ms)))


def refuse(entry: Entry, reason: str) -> Firing:
    """Returns what is to be written for an entry that is due and must not fire: it stays, with the reason."""
    return Firing(entry, [], _with(entry.headers, _text(REFUSED, reason)))


def first_rate(entry: Entry) -> float:
    """Returns how often a schedule will fire, a second, that has not fired yet; 0 for anything else."""
    if entry.kind is not Kind.REPEAT or entry.rate:
        return 0.0
    return schedule_in(texts_in(entry.headers)).firings_per_second


def asked_topic(entry: Entry) -> str | None:
    """Returns where the question about a half message goes; None for anything else."""
    return check_in(texts_in(entry.headers)).topic if entry.kind is Kind.HALF and entry.due_ms is not None else None


def delivery_key(entry: Entry) -> bytes:
    """Returns the key that the record has in the target topic."""
    return next((value for name, value in reversed(entry.headers) if name == DELIVER_KEY and value), entry.key)


def _text(name: str, value: object) -> Header:
    return name, str(value).encode()


def _with(headers: tuple[Header, ...], header: Header) -> list[Header]:
    """Returns the headers with this one in place of those of its name, and without the worker's mark."""
    return [one for one in headers if one[0] not in (header[0], RELEASED)] + [header]
