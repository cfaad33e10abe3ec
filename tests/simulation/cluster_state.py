"""A cluster between two steps: brokers, store, connections, clock; what was promised, and whether it holds."""

import itertools
import uuid
from dataclasses import dataclass
from itertools import permutations
from typing import NamedTuple

from skep.base.errors import Fenced, StoreUnavailable, VersionConflict
from skep.base.ids import BrokerId
from skep.metadata.layout import broker_key
from skep.metadata.model import NO_LEADER, PartitionRecord, TopicRecord
from tests.manual_clock import ManualClock
from tests.simulation.driver import Driver
from tests.simulation.model_store import TOPIC, Call, ModelStore
from tests.simulation.process import Disk, Process, Request
from tests.simulation.safety import Safety
from tests.simulation.violation import Excused, Violation

TOPIC_ID = uuid.UUID(int=7)


class Step(NamedTuple):
    kind: str
    which: int
    how: int


@dataclass(frozen=True)
class Shape:
    """How large the cluster is. ``in_sync`` replicas have a first record, the others nothing; 0: all, and no record.

    ``is_synced``: the topic syncs before it acknowledges.
    """

    brokers: int = 3
    partitions: int = 1
    min_insync_replicas: int = 2
    in_sync: int = 0
    is_synced: bool = False


class ClusterState:
    """All that there is. Between steps ``safety`` has found nothing wrong."""

    def __init__(self, shape: Shape, *, is_traced: bool = False) -> None:
        """Only when ``is_traced`` are steps told in full: to say it all takes longer than to do it."""
        self.shape = shape
        self._is_traced = is_traced
        self.clock = ManualClock()
        replicas = [BrokerId(number) for number in range(1, shape.brokers + 1)]
        placed = [replicas[index:] + replicas[:index] for index in range(shape.partitions)]
        count = shape.in_sync or shape.brokers
        records = tuple(PartitionRecord.new(brokers)._replace(isr=tuple(brokers[:count])) for brokers in placed)
        self.store = ModelStore(TopicRecord(TOPIC, TOPIC_ID, records))
        self.safety = Safety(shape.partitions, shape.min_insync_replicas)
        self.disks = {broker: Disk(shape.min_insync_replicas, shape.is_synced) for broker in replicas}
        self.processes: dict[BrokerId, Process] = {}
        self.orphans: list[Request] = []
        self.limbo: list[Call] = []
        """Writes of which the writer was told that nobody knows what became of them."""
        self.lost: dict[BrokerId, int] = {}
        """Brokers whose disk lost records that they are still counted on for, and the last registration before that."""
        self._waiting: list[tuple[int, int, tuple[int, int], object]] = []
        self._last_session = self.recoveries = 0
        self._values = itertools.count(1)
        self.driver = Driver()
        # With fewer replicas than have to be in sync, how many copies an acknowledgement stands for would be in flux.
        sizes = range(shape.min_insync_replicas, shape.brokers + 1)
        self._targets = [target for size in sizes for target in permutations(replicas, size)]
        self._begin()

    def _begin(self) -> None:
        """All brokers are there and know of each other."""
        for broker in self.disks:
            process = self._start_process(broker)
            process.run("start", process.start())
            while process.running is not None:
                self._serve_call(process, "answered")
        for process in self.processes.values():
            for key in process.unheard_keys():
                process.hear_of(key)

    def _start_process(self, broker: BrokerId) -> Process:
        self._last_session += 1
        disk, session = self.disks[broker], self._last_session
        process = Process(broker, disk, self.store, self.clock, session, self.orphans)
        self.processes[broker] = process
        return process

    def _awake(self) -> list[Process]:
        return [process for process in self.processes.values() if not process.is_frozen]

    def _idle(self) -> list[Process]:
        return [process for process in self._awake() if process.is_serving and process.running is None]

    def _is_up(self, process: Process) -> bool:
        return self.processes.get(process.id) is process

    # Calls to the store.

    def _can_be_served(self, process: Process) -> bool:
        call = process.running.call
        # Registering waits for the end of the session before; being controller needs one.
        if call.operation != "put_ephemeral":
            return True
        registers = call.arguments[0] == broker_key(process.id)
        return registers != (broker_key(process.id) in self.store.values)

    def _serve_call(self, process: Process, outcome: str) -> str:
        running = process.running
        assert running is not None
        assert running.call is not None
        call, said = running.call, ""
        try:
            result = self._execute(call) if outcome in ("answered", "unanswered") else None
        except (VersionConflict, Fenced) as error:
            said = f" ({type(error).__name__})"
            if outcome == "answered":
                running.fail(error)
        else:
            if isinstance(result, list) and any(isinstance(one, VersionConflict) for one in result):
                said = " (VersionConflict)"
            if outcome == "answered":
                running.answer(result)
        if outcome == "delayed":
            self.limbo.append(call)
        if outcome != "answered":
            running.fail(StoreUnavailable("no answer"))
        if running.call is None:
            process.running = None
        if process.has_failed:
            self._end_process(process)
            self._end_session(process.session)
        elif process.is_serving:
            self.lost.pop(process.id, None)
        return said

    def _execute(self, call: Call):
        before = self.store.topic
        result = self.store.execute(call)
        if self.store.topic is not before:
            self._excuse_choice(call, before)
            pairs = zip(before.partitions, self.store.topic.partitions, strict=True)
            self.recoveries += sum(old.is_undecided and not record.is_undecided for old, record in pairs)
        return result

    def _excuse_choice(self, call: Call, before: TopicRecord) -> None:
        """Were others let go by what brokers that have lost records were before they did?"""
        for old, record in zip(before.partitions, self.store.topic.partitions, strict=True):
            is_choice = not set(old.replicas) <= set(record.replicas)
            if is_choice and all(
                broker in self.lost and call.brokers_known.get(broker, -1) <= self.lost[broker] for broker in record.isr
            ):
                raise Excused(f"{record.isr} were chosen before anybody could know that they have lost records")

    def _writes(self) -> list[Call]:
        asked = [process.running.call for process in self.processes.values() if process.running is not None]
        return [call for call in (*asked, *self.limbo) if call.is_write]

    # Ends.

    def _end_process(self, process: Process) -> None:
        del self.processes[process.id]
        for other in self.processes.values():
            for fetcher in other.following.fetchers:
                # A request that was served has an answer on its way, which may still arrive.
                if fetcher.leader == process.id and fetcher.request is not None:
                    fetcher.request = None
                    fetcher.disconnect()
        for fetcher in process.following.fetchers:
            fetcher.disconnect()
        self.orphans[:] = [request for request in self.orphans if request.leader is not process]
        if process.running is not None:
            if process.running.call.is_write:
                self.limbo.append(process.running.call)
            process.running.close()
            process.running = None

    def _end_session(self, session: int) -> None:
        """No write of it takes effect from now on, unless its process lives and may try again."""
        self.store.end_session(session)
        alive = {process.session for process in self.processes.values()}
        self.limbo[:] = [call for call in self.limbo if call.session != session or session in alive]

    def close(self) -> None:
        for process in self.processes.values():
            if process.running is not None:
                process.running.close()

    # What is looked at after each step.

    def check(self) -> None:
        """Violation when a promise was broken."""
        safety = self.safety
        for broker, process in self.processes.items():
            if process.bugs:
                raise Violation(f"broker {broker} does not carry out what it hears: {process.bugs}")
            for partition in process.partitions:
                index, held = partition.topic_partition.partition, partition.log.held
                if partition.is_leader:
                    safety.leads(index, partition.leader_epoch, broker)
                safety.reads(index, broker, held, partition.high_watermark)
                record = self.store.topic.partitions[index]
                if partition.is_leader and (record.leader, record.leader_epoch) == (broker, partition.leader_epoch):
                    safety.acts(index, partition.high_watermark, record)
        for index, record in enumerate(self.store.topic.partitions):
            if record.leader not in (*record.isr, NO_LEADER) or not record.awaited:
                raise Violation(f"{index}: broker {record.leader} leads, the ISR is {record.isr}")
            for broker in record.isr:
                if broker not in self.lost:
                    safety.is_in_sync(index, broker, self.disks[broker].held(index))
        self._check_acknowledged()
        if self.driver.decided:
            self.driver.check(safety.seen[0])

    def _check_acknowledged(self) -> None:
        waiting = []
        for one in self._waiting:
            index, offset, entry, future = one
            if future is not None and not future.done():
                waiting.append(one)
            elif future is None or (not future.cancelled() and future.exception() is None):
                copies = [broker for broker, disk in self.disks.items() if disk.has_had(index, offset, entry)]
                self.safety.acknowledge(index, offset, entry, copies)
        self._waiting = waiting

    # In words.

    def _describe(self, process: Process) -> str:
        if not self._is_traced:
            return ""
        if not self._is_up(process):
            return "it has ended"
        return "; ".join(
            f"{'leads' if partition.is_leader else 'follows'} {partition.topic_partition.partition}"
            f" in {partition.leader_epoch}, log {partition.log.log_start_offset}: {partition.log.entries},"
            f" hw {partition.high_watermark}"
            + (f", isr {sorted(partition.in_sync.isr)}" if partition.in_sync is not None else "")
            for partition in process.partitions
        )

    def _of(self, call: Call) -> str:
        topic = call.topic_written() if self._is_traced else None
        if topic is None:
            return str(call.arguments[0])
        return " ".join(f"leader {one.leader} epoch {one.leader_epoch} isr {list(one.isr)}" for one in topic.partitions)
