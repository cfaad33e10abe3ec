"""Drives a coordinator's shard the way the runtime does, without logs or sockets, and remembers every record."""

from collections.abc import Callable
from typing import Any

from skep.base.errors import KafkaError
from skep.base.loop.slicer import run_at_once
from skep.coordination.active_shard import RETRY_MS
from skep.coordination.shard import LATER, Outcome, ProducerStamp, ShardContext
from skep.coordination.timers import Timers
from skep.records.record import iterate_records
from tests.manual_clock import ManualClock


class Waiter:
    """Stands for a client that waits: what it was told, once."""

    def __init__(self, name: str = "") -> None:
        self.name = name
        self.replies: list[Any] = []

    def __repr__(self) -> str:
        return f"<{self.name} {self.replies}>"

    @property
    def reply(self) -> Any:
        (reply,) = self.replies
        return reply

    @property
    def is_answered(self) -> bool:
        return bool(self.replies)


class DriverClock(ManualClock):
    def reach(self, moment: float) -> None:
        """Goes on to ``moment``, to the last bit: sums of fractions would end just before it, and nothing be due."""
        self.advance_ms(max(0, round((moment - self.monotonic()) * 1000)))
        self._monotonic = max(self._monotonic, moment)


class ShardDriver:
    """One shard. Records are encoded and decoded on their way into ``replay``, as a restart would read them."""

    def __init__(self, make_shard: Callable[[ShardContext], Any], decode: Callable[..., Any]) -> None:
        self.clock = DriverClock()
        self._make_shard = make_shard
        self._decode = decode
        self.log: list[Any] = []
        """(key bytes, value bytes or None, producer) of each record; (producer, is_committed) of each marker."""
        self.refuse_writes: KafkaError | None = None
        self.shard = self._new_shard()
        self.carry_out(run_at_once(self.shard.loaded()))

    def _new_shard(self) -> Any:
        self.timers = Timers(self.clock)
        return self._make_shard(ShardContext(0, self.clock, self.timers))

    def submit(self, operation: Callable[[Any], Outcome]) -> Any:
        """The response; KafkaError when the operation refuses, or its records cannot be written."""
        return self.carry_out(operation(self.shard))

    def submit_and_wait(self, operation: Callable[[Any, Any], Outcome], name: str = "") -> Waiter:
        """Whoever asked, answered at once or later; a refusal is a response, too."""
        waiter = Waiter(name)
        try:
            response = self.submit(lambda shard: operation(shard, waiter))
        except KafkaError as error:
            response = error
        if response is not LATER:
            waiter.replies.append(response)
        return waiter

    def carry_out(self, outcome: Outcome) -> Any:
        if (outcome.records or outcome.prepared is not None) and self.refuse_writes is not None:
            raise self.refuse_writes
        if outcome.prepared is not None:
            records = iterate_records(outcome.prepared.builder.batch())
            self.log += [(record.key, record.value, outcome.producer) for record in records]
            outcome.prepared.install()
        for key_part, value_part in outcome.records:
            key, value = key_part.encode(), None if value_part is None else value_part.encode()
            self.log.append((key, value, outcome.producer))
            self._replay(self.shard, len(self.log) - 1)
        if outcome.then is not None:
            outcome.then()
        for waiter, reply in outcome.replies:
            waiter.replies.append(reply)
        return outcome.response

    def end_transaction(self, producer: ProducerStamp, *, is_committed: bool) -> None:
        self.log.append((producer, is_committed))
        self._replay(self.shard, len(self.log) - 1)

    def _replay(self, shard: Any, offset: int) -> None:
        entry = self.log[offset]
        if len(entry) == 2:
            shard.replay_end_of_transaction(entry[0], is_committed=entry[1])
            return
        key, value, producer = entry
        decoded = self._decode(key, value)
        assert decoded is not None
        shard.replay(offset, *decoded, producer)

    def pass_ms(self, milliseconds: int) -> None:
        """Time passes; what becomes due meanwhile is carried out at its own moment."""
        end = self.clock.monotonic() + milliseconds / 1000
        while (moment := self.timers.next_moment()) is not None and moment <= end + 1e-9:
            self.clock.reach(moment)
            for operation in self.timers.take_due():
                try:
                    self.submit(operation)
                except KafkaError:
                    self.timers.schedule(("again", id(operation)), RETRY_MS, operation)
        self.clock.reach(end)

    def replayed(self) -> Any:
        """A new shard that has read the log and is not in use: to compare with the one that wrote it."""
        timers, shard = self.timers, self._new_shard()
        self.timers = timers
        for offset in range(len(self.log)):
            self._replay(shard, offset)
        return shard

    def restart(self) -> list[Waiter]:
        """The coordinator moves away and comes back: the old shard's clients are told, the new one reads the log."""
        told = []
        for waiter, reply in self.shard.unloaded().replies:
            waiter.replies.append(reply)
            told.append(waiter)
        self.shard = self._new_shard()
        for offset in range(len(self.log)):
            self._replay(self.shard, offset)
        self.carry_out(run_at_once(self.shard.loaded()))
        return told
