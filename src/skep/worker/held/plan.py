"""What a held record asks for: its headers, read into the moment at which something is to be done with it.

Of a record of a held topic, the key is the id under which it is scheduled. These headers are read, all of them text:

===================  ================================================================================================
``deliver-at``       the moment, in milliseconds since 1970 or as RFC 3339: ``2026-12-24T18:00:00+01:00``
``delay-ms``         milliseconds after the record's timestamp
``schedule``         ``@every 5m`` or a cron line, in ``schedule-zone`` (``Europe/Berlin``; UTC without it)
``deliver-key``      the key in the target topic; without it the record's own
``commit``           releases what waits under the key, at once; a record with an empty value keeps the value
``check-topic``      of a record without a time, which waits for its commit: where to ask what became of it,
``check-after-ms``   after which time without a commit, and again after as long,
``check-attempts``   and how often
``fired-at``         the worker's: the moment from which the next firing of a schedule counts
``checked``          the worker's: how often it has asked, and when it did last
``refused``          the worker's: why a schedule does not fire, or why a record without a time is not asked about
``released-offset``  the worker's, also in its tombstones: the offset of the version that this one replaces
===================  ================================================================================================

Everything here is a function of the record, so that it comes out the same whenever the log is read.
"""

import enum
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from skep.worker.held.cron import Schedule, ScheduleError, read_schedule

Header = tuple[str, bytes | None]
Headers = Sequence[Header]

DELIVER_AT, DELAY_MS, SCHEDULE, ZONE, DELIVER_KEY = (
    "deliver-at",
    "delay-ms",
    "schedule",
    "schedule-zone",
    "deliver-key",
)
COMMIT, CHECK_TOPIC, CHECK_AFTER_MS, CHECK_ATTEMPTS = "commit", "check-topic", "check-after-ms", "check-attempts"
FIRED_AT, CHECKED, REFUSED, RELEASED = "fired-at", "checked", "refused", "released-offset"
READ_HERE = frozenset(
    {
        *(DELIVER_AT, DELAY_MS, SCHEDULE, ZONE, DELIVER_KEY),
        *(COMMIT, CHECK_TOPIC, CHECK_AFTER_MS, CHECK_ATTEMPTS, FIRED_AT, CHECKED, REFUSED, RELEASED),
    }
)
"""The headers that are not passed on to the target."""
DUE_AT = "due-at"
"""In what is released: the moment that it was due at."""

AT_ONCE = 0
YEAR_MS = 365 * 86_400_000
DEFAULT_CHECKS = 15
SHORTEST_CHECK_MS = 1000
MOST_CHECKS = 1000
_TIMES = (DELIVER_AT, DELAY_MS, SCHEDULE)
_FAR = 1 << 61
_TOPIC = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_NUMBER = re.compile(r"-?[0-9]{1,18}")


class Kind(enum.IntEnum):
    """What happens to the record. Stored in the index."""

    DELIVER = 0
    """It is released once."""
    REPEAT = 1
    """It is released at each firing of its schedule."""
    HALF = 2
    """It waits for its commit."""
    COMMIT = 3
    """It releases what waits under its key."""
    INVALID = 4
    """It stays until a client replaces or removes it."""


@dataclass(frozen=True)
class Rules:
    """The name and the options of a held topic that decide what its records mean."""

    max_delay_ms: int = YEAR_MS
    rolls_back_undecided: bool = False
    topic: str = ""
    target: str = ""


class Plan(NamedTuple):
    """``due_ms`` is None for a record without a due time: a half message, or an invalid record.

    ``reason`` says why a record is invalid, or why no question is sent about a half message. ``rate`` is how often a
    schedule that has fired before fires, a second.
    """

    kind: Kind
    due_ms: int | None
    reason: str = ""
    rate: float = 0.0


class PlanError(ValueError):
    """What is wrong with a header."""


def texts_in(headers: Headers) -> dict[str, str]:
    """Returns the headers that are read here, except the key. The last one of a name counts. Raises PlanError."""
    texts = {}
    for name, value in headers:
        if name in READ_HERE and name != DELIVER_KEY:
            try:
                texts[name] = (value or b"").decode().strip()
            except UnicodeDecodeError:
                raise PlanError(f"the header {name} is not text") from None
    return texts


def plan_of(headers: Headers, timestamp_ms: int, rules: Rules) -> Plan:
    """Returns what the record asks for; a Plan of the kind INVALID if its headers cannot be followed."""
    try:
        # A producer may send any timestamp; sums of these numbers fit into the index.
        return _plan(texts_in(headers), max(-_FAR, min(timestamp_ms, _FAR)), rules)
    except (PlanError, ScheduleError) as error:
        return Plan(Kind.INVALID, None, str(error))


def _plan(texts: dict[str, str], timestamp_ms: int, rules: Rules) -> Plan:
    if COMMIT in texts:
        return Plan(Kind.COMMIT, AT_ONCE)
    given = [name for name in _TIMES if name in texts]
    if len(given) > 1:
        raise PlanError(f"only one of {' and '.join(given)} can be given")
    if not given:
        return _half(texts, timestamp_ms, rules)
    if REFUSED in texts:
        raise PlanError(texts[REFUSED] or "refused")
    if SCHEDULE in texts:
        schedule = schedule_in(texts)
        if FIRED_AT not in texts:
            return Plan(Kind.REPEAT, schedule.next_after(timestamp_ms))
        next_ms = schedule.next_after(_number(FIRED_AT, texts[FIRED_AT]))
        return Plan(Kind.REPEAT, next_ms, rate=schedule.firings_per_second)
    [given_time] = given
    text = texts[given_time]
    delay_ms = _number(DELAY_MS, text) if given_time == DELAY_MS else _moment(text) - timestamp_ms
    if delay_ms > rules.max_delay_ms:
        raise PlanError(f"{given_time} is {delay_ms} ms away, skep.held.max.delay.ms is {rules.max_delay_ms}")
    return Plan(Kind.DELIVER, timestamp_ms + delay_ms)


def _half(texts: dict[str, str], timestamp_ms: int, rules: Rules) -> Plan:
    if CHECK_TOPIC not in texts:
        for name in (CHECK_AFTER_MS, CHECK_ATTEMPTS):
            if name in texts:
                raise PlanError(f"{name} is given without {CHECK_TOPIC}")
        return Plan(Kind.HALF, None)
    if not _TOPIC.fullmatch(texts[CHECK_TOPIC]) or texts[CHECK_TOPIC] in (".", ".."):
        raise PlanError(f"{CHECK_TOPIC} cannot be the name of a topic: {texts[CHECK_TOPIC][:50]!r}")
    check = check_in(texts)
    if check.topic == rules.topic:
        raise PlanError(f"{CHECK_TOPIC} is {check.topic}, the held topic itself; questions need a topic of their own")
    if check.topic == rules.target:
        raise PlanError(f"{CHECK_TOPIC} is {check.topic}, the target, whose readers would see it before its commit")
    if REFUSED in texts:
        return Plan(Kind.HALF, None, texts[REFUSED] or "refused")
    if check.done >= check.attempts and not rules.rolls_back_undecided:
        return Plan(Kind.HALF, None)
    return Plan(Kind.HALF, (check.last_ms or timestamp_ms) + check.after_ms)


class Check(NamedTuple):
    """How a record without a commit is asked about, and how far that is."""

    topic: str
    after_ms: int
    attempts: int
    done: int
    last_ms: int


def check_in(texts: dict[str, str]) -> Check:
    after_ms = _between(CHECK_AFTER_MS, texts.get(CHECK_AFTER_MS, "30000"), SHORTEST_CHECK_MS, YEAR_MS)
    attempts = _between(CHECK_ATTEMPTS, texts.get(CHECK_ATTEMPTS, str(DEFAULT_CHECKS)), 1, MOST_CHECKS)
    done, _, last_ms = texts.get(CHECKED, "0 0").partition(" ")
    return Check(texts[CHECK_TOPIC], after_ms, attempts, _number(CHECKED, done), _number(CHECKED, last_ms))


def schedule_in(texts: dict[str, str]) -> Schedule:
    return read_schedule(texts[SCHEDULE], texts.get(ZONE))


def passed_on(headers: Iterable[Header]) -> list[Header]:
    """Returns the headers that are not about the schedule."""
    return [header for header in headers if header[0] not in READ_HERE]


def _number(name: str, text: str) -> int:
    if not _NUMBER.fullmatch(text):
        raise PlanError(f"{name} is not a number of milliseconds: {text[:50]!r}")
    return int(text)


def _between(name: str, text: str, low: int, high: int) -> int:
    if not low <= (number := _number(name, text)) <= high:
        raise PlanError(f"{name} is {number}, it must be from {low} to {high}")
    return number


def _moment(text: str) -> int:
    if _NUMBER.fullmatch(text):
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise PlanError(
            f"{DELIVER_AT} is neither milliseconds nor a time like 2026-12-24T18:00:00Z: {text[:50]!r}"
        ) from None
    if moment.tzinfo is None:
        raise PlanError(f"{DELIVER_AT} needs a zone, as in {text[:50]}Z or {text[:50]}+01:00")
    return int(moment.timestamp() * 1000)
