"""A broker on whose logs a worker releases held records, without a network. The worker's own code is the real one.

``HeldMemoryLog`` stands for ``KafkaLog``: it asks the present broker of a machine for what a producer and a consumer
would. When the broker dies, the next one is started, and the worker is told that it cannot go on.
"""

from collections.abc import Callable, Collection, Coroutine, Iterable, Sequence
from typing import Any, TypeVar

from skep.base.config.topic_config import TopicConfig
from skep.base.ids import Offset, TopicPartition
from skep.records.builder import NewRecord
from skep.records.record import Record, batches_in, iterate_records
from skep.worker.held.held_index import Position
from skep.worker.held.kafka_log import Unavailable
from skep.worker.held.transition import Firing, HeldRecord, Output
from tests.crash.life import led_here
from tests.crash.redrive_life import BrokerMachine, ReachedLife
from tests.crash.transaction_life import ID
from tests.memory_files import Crashed, MemoryFiles

HELD, TARGET, QUESTIONS = led_here("orders.later", 1), led_here("due.orders", 1), led_here("questions", 1)
HELD_PLACE = TopicPartition(HELD.name, 0)

T = TypeVar("T")


class HeldLife(ReachedLife):
    """With a held topic, its target and a topic of questions."""

    def __init__(self, files: MemoryFiles, config: TopicConfig) -> None:
        super().__init__(files, config, [HELD, TARGET, QUESTIONS])

    def held_records(self) -> list[HeldRecord]:
        return [held_record(record) for record in self.committed_records(HELD_PLACE)]


def held_record(record: Record) -> HeldRecord:
    headers = tuple(record.headers)
    return HeldRecord(int(record.offset), 0, record.timestamp, record.key or b"", record.value, headers)


class HeldMemoryLog:
    """After Unavailable it can only be closed, as a ``KafkaLog``."""

    def __init__(self, machine: BrokerMachine[HeldLife], now_ms: Callable[[], int]) -> None:
        self._machine, self._now_ms = machine, now_ms
        self._position, self._end_told = 0, -1
        self._sequences: dict[TopicPartition, int] = {}

    @property
    def _life(self) -> HeldLife:
        return self._machine.life

    def _ask(self, request: Coroutine[Any, Any, T]) -> T:
        try:
            return self._machine.run(request)
        except Crashed as error:
            self._machine.revive()
            raise Unavailable(str(error)) from None

    # Reading.

    def open(self) -> None:
        self._stamp = self._ask(self._life.new_producer())

    def was_cut(self, position: Position) -> bool:
        return self.end_offset() < position.next_offset

    def read_from(self, offset: int) -> None:
        self._position = offset

    def read(self, timeout_s: float, most: int) -> tuple[list[HeldRecord], int | None]:
        found = [record for record in self._life.held_records() if record.offset >= self._position]
        end = int(self._life.replicas.partition(*HELD_PLACE).last_stable_offset)
        is_new = end > self._end_told
        self._position = self._end_told = max(end, self._end_told)
        return found, end if is_new else None

    def end_offset(self) -> int:
        return int(self._life.replicas.partition(*HELD_PLACE).log.log_end_offset)

    def overtaken(self, keys: Collection[bytes], start: int, own: Collection[int]) -> dict[bytes, int]:
        log, found = self._life.replicas.partition(*HELD_PLACE).log, {}
        while start <= max(own):
            piece = log.read(Offset(start), 1 << 20, up_to=log.log_end_offset, at_least_one=True)
            assert piece.file is not None
            for header, batch in batches_in(piece.file.read(piece.position, piece.size)):
                for record in () if header.is_control else iterate_records(batch):
                    if record.offset >= start and record.offset not in own and record.key in keys:
                        found[record.key or b""] = int(record.offset)
            start = piece.next_offset
        return found

    # A transaction.

    def replace(self, firings: Sequence[Firing]) -> list[int]:
        records = [
            NewRecord(
                entry.key,
                None if next_headers is None else entry.value,
                self._now_ms(),
                (*(next_headers or ()), ("released-offset", b"%d" % entry.offset)),
            )
            for entry, _, next_headers in firings
        ]
        base_offset = self.end_offset()
        self._ask(self._append(HELD_PLACE, records))
        return list(range(base_offset, base_offset + len(records)))

    def send(self, outputs: Iterable[Output]) -> None:
        by_topic: dict[str, list[NewRecord]] = {}
        for topic, key, value, headers in outputs:
            by_topic.setdefault(topic, []).append(NewRecord(key, value, self._now_ms(), tuple(headers)))
        for topic, records in by_topic.items():
            self._ask(self._append(TopicPartition(topic, 0), records))

    async def _append(self, place: TopicPartition, records: list[NewRecord]) -> None:
        life, sequence = self._life, self._sequences.get(place, 0)
        await life.complete()
        await life.settled(life.transactions.add_partitions(ID, self._stamp, frozenset([place]), None))
        await life.append(self._stamp, place, sequence, records)
        self._sequences[place] = sequence + len(records)

    def commit(self) -> None:
        self._ask(self._end(commit=True))

    def abort(self) -> None:
        self._ask(self._end(commit=False))

    async def _end(self, *, commit: bool) -> None:
        await self._life.settled(self._life.transactions.end(ID, self._stamp, commit=commit, response=None))

    def close(self) -> None:
        pass
