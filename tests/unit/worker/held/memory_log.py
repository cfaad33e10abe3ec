"""A held partition's log in memory: committed, open and aborted records, compaction, and hooks between two steps.

It stands for a cluster: several ``MemoryLog`` of one ``MemoryCluster`` follow each other as the logs of workers do, and
the later one fences the earlier. ``hook`` is called before every step of a transaction, with its name; a test writes to
the log there, or raises what a kill would be.
"""

from collections.abc import Callable
from typing import NamedTuple

from skep.worker.held.kafka_log import Unavailable
from skep.worker.held.transition import HeldRecord

STEPS = ("replace", "replaced", "overtaken", "abort", "send", "commit", "committed")


class Killed(BaseException):
    """The worker dies here."""


class Written(NamedTuple):
    record: HeldRecord
    transaction: int | None
    """None for a record of a user's."""


class MemoryCluster:
    def __init__(self) -> None:
        self.now_ms = 1_000_000
        self.log: list[Written] = []
        self.history: list[Written] = []
        """Everything that was ever in the log."""
        self.next_offset = 0
        self.state: dict[int, str] = {}
        self.outputs: dict[int, list] = {}
        self.released_at: list[tuple[int, object]] = []
        self.epoch = 0
        self.hook: Callable[[str], None] = lambda step: None

    def write(self, key: bytes, value: bytes | None, headers=(), transaction: int | None = None) -> int:
        offset, self.next_offset = self.next_offset, self.next_offset + 1
        written = Written(HeldRecord(offset, 0, self.now_ms, key, value, tuple(headers)), transaction)
        self.log.append(written)
        self.history.append(written)
        return offset

    def is_committed(self, written: Written) -> bool:
        return written.transaction is None or self.state[written.transaction] == "committed"

    def committed(self) -> list[Written]:
        return [one for one in self.history if self.is_committed(one)]

    def compact(self) -> None:
        """Keeps the newest committed record of each key, and what is behind the last stable offset.

        Under a key whose newest record is a user's commit, everything is kept: what it commits is in an earlier one,
        and a worker reads both within ``min.compaction.lag.ms``.
        """
        stable = self.last_stable_offset()
        newest = {one.record.key: one for one in self.log if self._is_stable(one, stable)}
        self.log = [
            one
            for one in self.log
            if one.record.offset >= stable
            or (self.is_committed(one) and (newest[one.record.key] == one or _is_commit(newest[one.record.key])))
        ]

    def _is_stable(self, written: Written, stable: int) -> bool:
        return written.record.offset < stable and self.is_committed(written)

    def last_stable_offset(self) -> int:
        opened = [
            one.record.offset
            for one in self.log
            if one.transaction is not None and self.state[one.transaction] == "open"
        ]
        return min(opened, default=self.next_offset)

    def delivered(self) -> list:
        """The outputs of committed transactions."""
        return [one for number, outputs in self.outputs.items() if self.state[number] == "committed" for one in outputs]


def _is_commit(written: Written) -> bool:
    return written.transaction is None and any(name == "commit" for name, _ in written.record.headers)


class MemoryLog:
    def __init__(self, cluster: MemoryCluster) -> None:
        self._cluster = cluster
        self._position = 0
        self._transaction = -1
        self._epoch = -1
        self._end_told = -1
        self.is_cut = False

    def open(self) -> None:
        cluster = self._cluster
        cluster.epoch += 1
        self._epoch = cluster.epoch
        for number, state in cluster.state.items():
            if state == "open":
                cluster.state[number] = "aborted"

    def was_cut(self, position) -> bool:
        return self.is_cut

    def read_from(self, offset: int) -> None:
        self._position = offset

    def read(self, timeout_s: float, most: int):
        stable = self._cluster.last_stable_offset()
        found = [
            one
            for one in self._cluster.log
            if self._position <= one.record.offset < stable and self._cluster.is_committed(one)
        ][:most]
        if len(found) == most:
            self._position = found[-1].record.offset + 1
            return [one.record for one in found], None
        is_new = self._position < stable or self._end_told < 0
        self._position = self._end_told = stable
        return [one.record for one in found], stable if is_new else None

    def end_offset(self) -> int:
        return self._cluster.next_offset

    def replace(self, firings):
        self._step("replace")
        cluster = self._cluster
        self._transaction = len(cluster.state)
        cluster.state[self._transaction] = "open"
        cluster.outputs[self._transaction] = []
        offsets = []
        for firing in firings:
            value = None if firing.next_headers is None else firing.entry.value
            headers = [*(firing.next_headers or ()), ("released-offset", str(firing.entry.offset).encode())]
            offsets.append(cluster.write(firing.entry.key, value, headers, self._transaction))
        self._step("replaced")
        return offsets

    def overtaken(self, keys, start, own):
        self._step("overtaken")
        return {
            one.record.key: one.record.offset
            for one in self._cluster.log
            if start <= one.record.offset <= max(own) and one.record.offset not in own and one.record.key in keys
        }

    def send(self, outputs) -> None:
        self._step("send")
        self._cluster.outputs[self._transaction] += outputs

    def commit(self) -> None:
        self._step("commit")
        self._cluster.state[self._transaction] = "committed"
        for output in self._cluster.outputs[self._transaction]:
            self._cluster.released_at.append((self._cluster.now_ms, output))
        self._step("committed")

    def abort(self) -> None:
        self._step("abort")
        self._cluster.state[self._transaction] = "aborted"

    def close(self) -> None:
        pass

    def _step(self, name: str) -> None:
        if self._cluster.epoch != self._epoch:
            raise Unavailable("fenced")
        self._cluster.hook(name)
