"""What a held topic must have released, found out from its log alone, one key and one record at a time.

The model knows nothing of indexes, transactions or positions. It goes through the committed records of a held topic:
those of users say what waits under a key, those of the worker (they have ``released-offset``) say what was done with
it. Each of the worker's must follow the very version that it names, and must be what that version asks for.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from skep.worker.held.transition import HeldRecord

Released = tuple[str, bytes, bytes, str]
"""Topic, key, value, and ``due-at`` or ``check-attempt``."""


@dataclass
class Waiting:
    """What waits under a key. ``due_ms`` is None if it waits for somebody."""

    kind: str
    offset: int
    value: bytes
    due_ms: int | None = None
    headers: dict[str, str] = field(default_factory=dict)


class HeldModel:
    """``released`` is what readers of committed records must find; ``waiting`` is what is left, by key."""

    def __init__(self, records: Iterable[HeldRecord], *, target: str = "orders", rolls_back: bool = False) -> None:
        self.released: Counter[Released] = Counter()
        self.waiting: dict[bytes, Waiting] = {}
        self._target, self._rolls_back = target, rolls_back
        for record in records:
            headers = {name: (value or b"").decode() for name, value in record.headers}
            after = (self._of_worker if "released-offset" in headers else self._of_user)(record, headers)
            if after is None:
                self.waiting.pop(record.key, None)
            else:
                self.waiting[record.key] = after

    def _of_user(self, record: HeldRecord, headers: dict[str, str]) -> Waiting | None:
        before, value = self.waiting.get(record.key), record.value or b""
        if "commit" in headers:
            if before is None or before.kind == "invalid":
                return Waiting("invalid", record.offset, value)
            return Waiting("commit", record.offset, value or before.value, 0)
        if record.value is None:
            return None
        if "delay-ms" in headers:
            return Waiting("once", record.offset, value, record.timestamp_ms + int(headers["delay-ms"]))
        if "schedule" in headers:
            return Waiting("repeat", record.offset, value, record.timestamp_ms + _every_ms(headers), headers)
        due_ms = record.timestamp_ms + int(headers["check-after-ms"]) if "check-topic" in headers else None
        return Waiting("half", record.offset, value, due_ms, headers)

    def _of_worker(self, record: HeldRecord, headers: dict[str, str]) -> Waiting | None:
        before = self.waiting.get(record.key)
        assert before is not None, f"{record} releases what does not wait: twice, or after its recall"
        assert before.offset == int(headers["released-offset"]), f"{record} releases another version than {before}"
        assert before.due_ms is not None, f"{record} releases {before}, which has no time"
        if before.kind in ("once", "commit"):
            assert record.value is None
            when = "" if before.kind == "commit" else str(before.due_ms)
            self.released[self._target, record.key, before.value, when] += 1
            return None
        if before.kind == "repeat":
            assert record.value == before.value
            every_ms, fired_ms = _every_ms(headers), int(headers["fired-at"])
            assert fired_ms >= before.due_ms
            assert (fired_ms - before.due_ms) % every_ms == 0
            assert fired_ms + every_ms > record.timestamp_ms, "all that were missed are made up for by one firing"
            self.released[self._target, record.key, before.value, str(before.due_ms)] += 1
            return Waiting("repeat", record.offset, before.value, fired_ms + every_ms, headers)
        return self._asked(record, headers, before)

    def _asked(self, record: HeldRecord, headers: dict[str, str], before: Waiting) -> Waiting | None:
        assert before.kind == "half"
        done = int(before.headers.get("checked", "0").split()[0])
        is_last = done == int(before.headers["check-attempts"])
        if record.value is None:
            is_rolled_back = is_last and self._rolls_back
            assert is_rolled_back, f"{before} is rolled back, and nobody has said so"
            return None
        attempt, asked_ms = map(int, headers["checked"].split())
        assert attempt == done + 1
        assert not is_last
        assert asked_ms >= (before.due_ms or 0), "nobody is asked before the time"
        self.released[before.headers["check-topic"], record.key, before.value, str(attempt)] += 1
        has_next = attempt < int(headers["check-attempts"]) or self._rolls_back
        due_ms = asked_ms + int(headers["check-after-ms"]) if has_next else None
        return Waiting("half", record.offset, before.value, due_ms, headers)

    def overdue(self, now_ms: int) -> list[Waiting]:
        """Returns what waits although its time has come."""
        return [one for one in self.waiting.values() if one.due_ms is not None and one.due_ms <= now_ms]


def released(topic: str, key: bytes, value: bytes | None, headers: Sequence[tuple[str, bytes | None]]) -> Released:
    """Returns a record of the target, or a question, as the model has it."""
    texts = {name: (text or b"").decode() for name, text in headers}
    return topic, key, value or b"", texts.get("due-at") or texts.get("check-attempt", "")


def _every_ms(headers: dict[str, str]) -> int:
    return 1000 * int(headers["schedule"].removeprefix("@every ").removesuffix("s"))
