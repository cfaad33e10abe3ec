"""The interface between a coordinator and the runtime: a shard of state that changes by replay, and operations on it.

An operation looks at the state, decides, and returns an ``Outcome``. The runtime writes the outcome's records to the
shard's partition, replays them into the state, calls ``then``, and sends the responses once the records are committed.
When the records cannot be written, nothing has happened. So an operation with records changes nothing itself: state
that is in the log changes in ``replay``, and state that is not (waiters, timers) changes in ``then``. An operation
without records may change state that is not in the log at once.

Everything else waits while an operation runs, so an operation is short, also in a group with a hundred thousand
offsets. Longer work is split into several operations, each of which leaves a state that clients may see. An operation
that only reads may return a snapshot, from which the handler builds the response in slices. Records that must be in one
batch and take long to encode are encoded beforehand (``Prepared``).
"""

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from skep.base.clock import Clock
from skep.base.loop.slicer import Work
from skep.coordination.timers import Timers
from skep.records.builder import BatchBuilder

Waiter = Any
"""A client that waits for a reply of a later operation: a future for the runtime, an opaque token for a coordinator."""


class RecordPart(Protocol):
    def encode(self) -> bytes: ...


class CoordinatorRecord(NamedTuple):
    """One key and its value; None is a tombstone."""

    key: RecordPart
    value: RecordPart | None


class ProducerStamp(NamedTuple):
    """The producer in whose transaction records are written (TxnOffsetCommit). Kafka: ProducerIdAndEpoch."""

    producer_id: int
    producer_epoch: int


class _Later:
    def __repr__(self) -> str:
        return "LATER"


LATER: Any = _Later()
"""As a response: the client waits as a waiter, and gets a reply of a later outcome."""


class Freshness(enum.Enum):
    """How fresh the state must be for a response that writes nothing: another broker may be the coordinator by now.

    Outcomes with records need no such check: only the current leader can get them acknowledged.
    """

    ANY = enum.auto()
    """A stale response does no harm."""
    LEASED = enum.auto()
    """The operation is refused when the leadership lease of the partition has expired."""
    PROVEN = enum.auto()
    """The response waits until a record that changes nothing is committed."""


class Prepared:
    """Records that are encoded in slices before the operation that writes them, and the state that they lead to.

    The operation must check that the state is still the one from which the records were made. ``install`` replaces the
    replay: it is called when the records are in the log, and must leave the state that a replay would leave.
    """

    __slots__ = ("_now_ms", "builder", "install")

    def __init__(self, now_ms: int) -> None:
        self._now_ms = now_ms
        self.builder = BatchBuilder()
        self.install: Callable[[], None] = lambda: None

    def add(self, record: CoordinatorRecord) -> None:
        key, value = record
        self.add_encoded(key.encode(), None if value is None else value.encode())

    def add_encoded(self, key: bytes, value: bytes | None) -> None:
        self.builder.add([(key, value, self._now_ms, ())])


@dataclass(slots=True)
class Outcome:
    """The decision of an operation.

    ``response`` is for the client that made the request, ``replies`` are for earlier waiters. Both are sent when
    everything written to the shard so far is committed, so no client sees what may still be lost. A reply that is a
    KafkaError is raised where it is awaited. ``freshness`` applies to outcomes without records. ``prepared`` records
    come before ``records``, in the same batch.
    """

    response: Any = None
    records: Sequence[CoordinatorRecord | tuple[RecordPart, RecordPart | None]] = ()
    replies: Sequence[tuple[Waiter, Any]] = ()
    then: Callable[[], None] | None = None
    producer: ProducerStamp | None = None
    freshness: Freshness = Freshness.ANY
    prepared: Prepared | None = None


Operation = Callable[[Any], Outcome]
"""Takes the shard. Raises KafkaError to refuse, and has then changed nothing."""


class Shard(Protocol):
    """The state of one partition of a coordinator's topic. No method awaits; the event loop is the lock."""

    @property
    def no_change(self) -> CoordinatorRecord:
        """A record that changes nothing when it is replayed: the tombstone of a key that no other record has."""
        ...

    def replay(self, offset: int, key: Any, value: Any, producer: ProducerStamp | None) -> None:
        """Applies one record. With ``producer`` it belongs to a transaction of that producer that has not ended yet."""
        ...

    def replay_end_of_transaction(self, producer: ProducerStamp, *, is_committed: bool) -> None:
        """Applies the records of the producer's transaction, or drops them."""
        ...

    def loaded(self) -> Work[Outcome]:
        """Called when all records have been replayed: starts timers and resumes what was in progress. No operation runs
        before it ends."""
        ...

    def unloaded(self) -> Outcome:
        """Called when the partition has moved away. Returns replies to all waiters; it cannot write records."""
        ...


class ShardContext(NamedTuple):
    """What a shard is created with."""

    partition: int
    clock: Clock
    timers: Timers
    """The timers of this shard; they stop when it is unloaded."""


Decoder = Callable[[bytes, bytes | None], tuple[Any, Any] | None]
"""Decodes a record for ``replay``. Returns None for a record to skip, raises ValueError for a damaged one."""
