"""A broker over which ``skep queues redrive`` works, without a network: transactions, share state, share partitions.

``Machine`` starts one after the other on the same files. It stands for what the command reaches over the network: the
producer, the leader of the partition, the reader of the dead-letter topic. The command's own code is the real one.
"""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, Generic, TypeVar

from skep.base.config.broker_config import BrokerConfig
from skep.base.config.current_config import CurrentConfig
from skep.base.config.topic_config import TopicConfig
from skep.base.dead_letters import COPIED, DeadLetter
from skep.base.errors import KafkaError, StorageError
from skep.base.ids import Offset, TopicPartition
from skep.base.loop.slicer import Slicer
from skep.broker.commands import deliveries, reopen
from skep.broker.share.share_partition import SharePartition
from skep.broker.share.share_partitions import SharePartitions
from skep.cli.queues.dead_letter_reader import DeadLetterReader, LetterFilter
from skep.cli.queues.redrive import Fate
from skep.client.errors import Unreachable
from skep.coordination.coordinator_runtime import CoordinatorRuntime
from skep.coordination.share.acknowledgement import Acknowledgement
from skep.coordination.share.acquisition import Order
from skep.coordination.share.share_coordinator import ShareCoordinator
from skep.coordination.share.share_records import decode_share_record
from skep.coordination.share.share_shard import ShareShard
from skep.coordination.share.share_state import SharePartitionKey
from skep.metadata.model import TopicRecord
from skep.records.batch import read_header
from skep.records.builder import NewRecord, build_batch
from skep.records.record import Record
from tests.crash.life import HERE, led_here
from tests.crash.transaction_life import GROUP, ID, TransactionLife
from tests.memory_files import Crashed, MemoryFiles, Survivors

STATE, SOURCE, LETTERS = led_here("__share_group_state", 1), led_here("parcels", 1), led_here("dlq.parcels", 1)
KEY = SharePartitionKey(GROUP, SOURCE.topic_id, 0)
PLACE, DEAD_PLACE = TopicPartition(SOURCE.name, 0), TopicPartition(LETTERS.name, 0)
COMMANDS = {"deliveries": deliveries.COMMAND, "reopen": reopen.COMMAND}
ACCEPT, REJECT = 1, 3

T = TypeVar("T")


class ReachedLife(TransactionLife):
    """With clients, for whom a death in the background is one, too."""

    turns = 300

    def __init__(self, files: MemoryFiles, config: TopicConfig, more: Sequence[TopicRecord]) -> None:
        super().__init__(files, config, more)
        self._files = files

    async def until(self, condition: Callable[[], bool]) -> None:
        try:
            await super().until(condition)
        except AssertionError:
            # The task that has died is one of which nobody waits for the end, but for what it would have done.
            if self._files.is_stopped:
                raise Crashed("in a task") from None
            raise

    async def write(self, place: TopicPartition, records: list[NewRecord]) -> None:
        batch = build_batch(records)
        _, synced = self.replicas.partition(*place).append(batch, read_header(batch))
        await self.settled(synced)


class RedriveLife(ReachedLife):
    """With the share coordinator and share partitions."""

    def __init__(self, files: MemoryFiles, config: TopicConfig) -> None:
        super().__init__(files, config, [STATE, SOURCE, LETTERS])
        # The copies of a redrive that did not commit them are not read.
        self.catalog.image = self.catalog.image.with_group_config(GROUP, {"share.isolation.level": "read_committed"})
        current = CurrentConfig(BrokerConfig())
        self.states: CoordinatorRuntime[ShareShard] = CoordinatorRuntime(
            STATE.name,
            lambda context: ShareShard(context, current, lambda: self.catalog.image),
            decode_share_record,
            *self.for_runtimes,
        )
        self.share = ShareCoordinator(self.states, current, lambda index, before: None)
        executor, slicer = self.for_runtimes[2], Slicer(self.clock)
        self.shares = SharePartitions(
            self.replicas,
            self.share,
            lambda: self.catalog.image,
            current,
            self.clock,
            self.supervisor,
            None,  # type: ignore[arg-type]  # no group begins by a time
            executor,
            slicer,
        )
        self.services: Any = SimpleNamespace(
            share_partitions=self.shares,
            share_sessions=SimpleNamespace(drop_unused=self.shares.group_unused),
            config=BrokerConfig(),
            replicas=self.replicas,
            catalog=self.catalog,
            clock=self.clock,
            slicer=slicer,
        )

    async def start(self) -> None:
        await super().start()
        self.states.follow(STATE, HERE)
        await self.until(lambda: not self.states.is_loading)

    async def loaded(self) -> SharePartition:
        share = self.shares.find(*KEY)
        await self.until(lambda: share.window is not None)
        return share

    async def handle(self, acknowledgement: Callable[[int], int]) -> list[tuple[int, int]]:
        """Lets a member take all that is open. Returns the offsets and delivery counts."""
        share = await self.loaded()
        found: list[tuple[int, int]] = []
        while (delivery := share.deliver(Order("m", 500, 500), 1 << 20, at_least_one=True)) is not None:
            for one in delivery.acquired:
                offsets = range(one.first, one.last + 1)
                found += [(offset, one.delivery_count) for offset in offsets]
                types = [acknowledgement(offset) for offset in offsets]
                written = share.acknowledge("m", [Acknowledgement(one.first, one.last, types)])
                assert written is not None
                assert await self.settled(written) is None
        return found


L = TypeVar("L", bound=ReachedLife)


class BrokerMachine(Generic[L]):
    """``run`` lets the present broker do something; Crashed if it dies meanwhile. ``revive`` starts the next one."""

    def __init__(
        self, make_life: Callable[[MemoryFiles, TopicConfig], L], config: TopicConfig, survivors: Survivors
    ) -> None:
        self.files = MemoryFiles()
        self._make_life, self._config, self._survivors = make_life, config, survivors
        self._begin()

    def _begin(self) -> None:
        self._runner = asyncio.Runner()
        self.life = self._runner.run(self._started())

    async def _started(self) -> L:
        life = self._make_life(self.files, self._config)
        await life.start()
        return life

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        try:
            return self._runner.run(work)
        except (StorageError, KafkaError) as error:
            # A death in a thread that syncs is to those who wait for it a failed sync.
            if self.files.is_stopped:
                raise Crashed(str(error)) from None
            raise

    def revive(self) -> None:
        self.end()
        self.files.crash(names=self._survivors, content=self._survivors)
        self._begin()

    def end(self) -> None:
        self._runner.get_loop().set_exception_handler(lambda loop, context: None)
        with contextlib.suppress(BaseException):
            self._runner.close()


class Machine(BrokerMachine[RedriveLife]):
    """What the command reaches."""

    def __init__(self, config: TopicConfig, survivors: Survivors, before_request: Callable[[], None]) -> None:
        super().__init__(RedriveLife, config, survivors)
        self.before_request = before_request
        self.is_revived_at_once = False
        """Whether the command lives on when the broker dies, and finds the next one."""

    def command(
        self,
        client: object,
        topic: str,
        partition: int,
        name: str,
        arguments: Mapping[str, Any],
        may_repeat: bool = True,
    ) -> Any:
        command = COMMANDS[name]
        defaults = {one: argument.default for one, argument in command.arguments.items() if not argument.is_required}
        given = {**defaults, **arguments, "topic": topic, "partition": partition}
        while True:
            self.before_request()
            try:
                return self.run(self._ask(command.run, given))
            except Crashed as error:
                if not self.is_revived_at_once:
                    raise
                self.revive()
                if not may_repeat:
                    raise Unreachable(str(error)) from None

    async def _ask(self, run: Any, given: Mapping[str, Any]) -> Any:
        return await self.life.settled(run(self.life.services, given))

    def reader(self) -> DeadLetterReader:
        return _Reader(self)

    def topic_id(self, topic: str) -> str:
        return str(SOURCE.topic_id)

    def fate(self, topic: str, partition: int, letters: Any) -> Fate:
        start = self.life.replicas.partition(*PLACE).log.log_start_offset
        fate = Fate([], [], [])
        for one in letters:
            (fate.in_place if one.letter.offset >= start else fate.from_copy).append(one)
        return fate


class MemoryProducer:
    """Does what a transactional producer asks a broker for. It retries as the library does: what was not confirmed is
    sent to the next broker, unless that has it."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._records: dict[TopicPartition, list[NewRecord]] = {}
        self._sequences: dict[TopicPartition, int] = {}

    def init_transactions(self, _timeout_s: float) -> None:
        while not self._ask(lambda: self._init()):
            pass

    async def _init(self) -> None:
        self._stamp = await self._machine.life.new_producer()
        self._sequences = {}

    def begin_transaction(self) -> None:
        self._records = {}

    def produce(self, topic: str, value: Any, key: Any, partition: int, headers: Any) -> None:
        place = TopicPartition(topic, partition)
        self._records.setdefault(place, []).append(NewRecord(key, value, 1_700_000_000_000, tuple(headers)))

    def commit_transaction(self, _timeout_s: float) -> None:
        steps: list[Callable[[], Coroutine[Any, Any, None]]] = [self._add]
        steps += [lambda place=place: self._append(place) for place in self._records]  # type: ignore[misc]
        for step in [*steps, self._end]:
            while not self._ask(step):
                pass

    async def _add(self) -> None:
        life = self._machine.life
        await life.complete()
        added = life.transactions.add_partitions(ID, self._stamp, frozenset(self._records), None)
        await life.settled(added)

    async def _append(self, place: TopicPartition) -> None:
        life, sequence = self._machine.life, self._sequences.get(place, 0)
        # A batch with a sequence that the log has is confirmed, and not appended again.
        await life.append(self._stamp, place, sequence, self._records[place])
        self._sequences[place] = sequence + len(self._records[place])

    async def _end(self) -> None:
        life = self._machine.life
        await life.settled(life.transactions.end(ID, self._stamp, commit=True, response=None))

    def _ask(self, request: Callable[[], Coroutine[Any, Any, None]]) -> bool:
        """Returns whether a broker has confirmed it."""
        self._machine.before_request()
        try:
            self._machine.run(request())
        except Crashed:
            if not self._machine.is_revived_at_once:
                raise
            self._machine.revive()
            return False
        return True


class _Message:
    """A record of the dead-letter topic, as confluent-kafka shows it."""

    def __init__(self, record: Record) -> None:
        self._record = record

    def headers(self) -> Any:
        return list(self._record.headers)

    def partition(self) -> int:
        return 0

    def offset(self) -> int:
        return int(self._record.offset)

    def timestamp(self) -> tuple[int, int]:
        return 1, self._record.timestamp

    def key(self) -> bytes | None:
        return self._record.key

    def value(self) -> bytes | None:
        return self._record.value


class _Reader(DeadLetterReader):
    def __init__(self, machine: Machine) -> None:
        machine.before_request()
        self._records = machine.life.committed_records(DEAD_PLACE)
        super().__init__(None, LETTERS.name, LetterFilter(GROUP), lambda mark: True)  # type: ignore[arg-type]

    def _all_spans(self) -> Any:
        return {0: None}

    def _messages(self) -> Iterator[Any]:
        return map(_Message, self._records)


def letter_of(offset: int, record: Record) -> NewRecord:
    letter = DeadLetter(GROUP, SOURCE.name, 0, offset, 1, "rejected", str(SOURCE.topic_id), record.timestamp, COPIED)
    return NewRecord(record.key, record.value, record.timestamp, tuple(letter.headers()))


def delete_records(life: RedriveLife, before: int) -> None:
    life.replicas.delete_records_before(life.replicas.partition(*PLACE), Offset(before))
