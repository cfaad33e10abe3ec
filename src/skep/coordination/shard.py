"""What a coordinator is to the runtime: a shard of state that changes by replay, and operations that give outcomes.

An operation looks at the state and decides; it gives an ``Outcome``. The runtime writes the outcome's records to the
shard's partition, replays them into the state, calls ``then``, and sends the answers once the records are committed.
When the records cannot be written nothing has happened. So an operation that has records changes nothing itself: what
is remembered in the log changes in ``replay``, and what is not (who waits, timers) in ``then``. One without records may
change what is not in the log at once.

Everybody waits while an operation runs, so an operation is short, also in a group of a hundred thousand offsets. What
takes longer is several operations, each of which leaves the state as a client may see it. An operation that only reads
may give a snapshot as its response, from which the handler makes the response to the client in slices. Records that
must be in one batch, and take long, are encoded beforehand (``Prepared``).
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
"""Who waits for an answer that a later operation gives: a future to the runtime, a mere token to a coordinator."""


class RecordPart(Protocol):
    def encode(self) -> bytes: ...


class CoordinatorRecord(NamedTuple):
    """One key and its value; None deletes the key."""

    key: RecordPart
    value: RecordPart | None


class ProducerStamp(NamedTuple):
    """Of whose transaction records are a part (TxnOffsetCommit)."""

    producer_id: int
    producer_epoch: int


class _Later:
    def __repr__(self) -> str:
        return "LATER"


LATER: Any = _Later()
"""As a response: whoever asked waits under its waiter, and is answered among the replies of a later outcome."""


class Freshness(enum.Enum):
    """How sure a coordinator must be of an answer for which it writes nothing: another broker may coordinate by now.

    What is written needs no such thing. Only the leader of now can have it acknowledged.
    """

    ANY = enum.auto()
    """An old answer does no harm."""
    LEASED = enum.auto()
    """Refused when the lease of the partition is over."""
    PROVEN = enum.auto()
    """Held back until a record that changes nothing is committed."""


class Prepared:
    """Records that were encoded before the operation that writes them, in slices, and the state that they make.

    The operation must check that the state is still the one that the records were made from. ``install`` takes the
    place of the replay: it is called when the records are in the log, and leaves what a replay would leave.
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
    """What an operation has decided.

    ``response`` answers whoever asked, ``replies`` those who wait since earlier; both go out when all that was written
    to the shard so far is committed, so nobody sees what may yet be lost. A reply that is a KafkaError is raised where
    it is awaited. ``freshness`` is for outcomes without records. ``prepared`` records come before ``records``, in the
    same batch.
    """

    response: Any = None
    records: Sequence[CoordinatorRecord | tuple[RecordPart, RecordPart | None]] = ()
    replies: Sequence[tuple[Waiter, Any]] = ()
    then: Callable[[], None] | None = None
    producer: ProducerStamp | None = None
    freshness: Freshness = Freshness.ANY
    prepared: Prepared | None = None


Operation = Callable[[Any], Outcome]
"""Takes the shard. KafkaError refuses, and nothing is changed."""


class Shard(Protocol):
    """The state behind one partition of a coordinator's topic. Nothing in it awaits; the event loop is its lock."""

    @property
    def no_change(self) -> CoordinatorRecord:
        """A record that changes nothing, whoever replays it: the tombstone of a key that nothing ever has."""
        ...

    def replay(self, offset: int, key: Any, value: Any, producer: ProducerStamp | None) -> None:
        """Takes in one record; of a transaction that has not ended yet when ``producer`` is given."""
        ...

    def replay_end_of_transaction(self, producer: ProducerStamp, *, is_committed: bool) -> None:
        """The records of that producer's transaction count from now on, or never did."""
        ...

    def loaded(self) -> Work[Outcome]:
        """All records have been replayed: start timers, go on with what was under way. Nobody asks before it ends."""
        ...

    def unloaded(self) -> Outcome:
        """The partition has moved away. Gives the answers to all who wait; there can be no records."""
        ...


class ShardContext(NamedTuple):
    """What a shard is made with."""

    partition: int
    clock: Clock
    timers: Timers
    """Of this shard alone; they stop when it is unloaded."""


Decoder = Callable[[bytes, bytes | None], tuple[Any, Any] | None]
"""From the bytes of a record to what ``replay`` takes; None for one to pass over; ValueError for damaged ones."""
