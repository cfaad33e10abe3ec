"""The writes of a share partition's state: one at a time, each with everything that has changed since the last one.

Many members that acknowledge at once share a write, and no write can overtake another. If a write fails, the members
hold the records again; changes without a waiting request stay for the next write.

If the coordinator is on this broker and has no followers, there is nothing to wait for. Then the first acknowledgement
in a turn of the event loop is written at once, and its response needs no task. The others of the turn share a write.

Finished offsets are opened again by a write of its own kind: it has the whole state, under the next generation. If it
fails, it may still arrive, and would undo what is written until then. So all writes after it are of this kind, each
with a generation of its own, until one succeeds: that fences the others. They open the same offsets. So a client that
finds another generation than before its request can conclude that the offsets were opened.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from skep.base.errors import ErrorCode, KafkaError, StorageError
from skep.base.ids import LeaderEpoch
from skep.base.loop.supervisor import Supervisor
from skep.coordination.share.delivery_runs import OffsetRange, merged
from skep.coordination.share.share_state import SharePartitionKey, SharePersister, ShareState, StateBatch
from skep.coordination.share.share_window import ShareWindow

logger = logging.getLogger(__name__)

ENDED_BY = {
    ErrorCode.fenced_leader_epoch: ErrorCode.not_leader_or_follower,
    ErrorCode.fenced_state_epoch: ErrorCode.not_leader_or_follower,
    ErrorCode.group_id_not_found: ErrorCode.group_id_not_found,
    ErrorCode.unknown_topic_or_partition: ErrorCode.unknown_topic_or_partition,
}
"""Errors of the persister after which the state has to be read again, and the error that members get."""

_COORDINATOR_MOVES = (
    ErrorCode.not_coordinator,
    ErrorCode.coordinator_not_available,
    ErrorCode.coordinator_load_in_progress,
)


class _Waiting(NamedTuple):
    """An acknowledgement whose result has to be written. ``written`` is None while it is tried to do so at once."""

    ranges: Sequence[OffsetRange]
    written: "asyncio.Future[KafkaError | None] | None"


class _Reopening(NamedTuple):
    """Finished offsets to be opened again. ``written`` gets their number, or the error."""

    ranges: Sequence[OffsetRange]
    written: "asyncio.Future[int | KafkaError]"


class _Write(NamedTuple):
    """One write, and the requests that wait for it. ``opened`` are the offsets that it opens again."""

    window: ShareWindow
    state: ShareState
    waiting: list[_Waiting]
    reopenings: Sequence[_Reopening]
    opened: Sequence[OffsetRange]


class WrittenShare(Protocol):
    """The share partition, as its writes see it."""

    key: SharePartitionKey
    leader_epoch: LeaderEpoch
    window: ShareWindow | None
    error: KafkaError | None

    @property
    def log_start_offset(self) -> int: ...

    def roll_back(self, window: ShareWindow, ranges: Sequence[OffsetRange]) -> list[OffsetRange]:
        """Gives the records back to their members. Returns what is released because their locks have expired."""
        ...

    def written(self, window: ShareWindow, batches: Sequence[StateBatch]) -> None:
        """These changes are committed, in the window too."""
        ...

    def not_written(self, window: ShareWindow, released: Sequence[OffsetRange]) -> None:
        """A write has failed and is rolled back."""
        ...

    def end(self, error: KafkaError) -> None: ...


class ShareWrites:
    """Owns what is not written yet. ``state_epoch`` and ``generation`` are those of the state that was read."""

    def __init__(
        self, share: WrittenShare, persister: SharePersister, supervisor: Supervisor, settled: Callable[[], None]
    ) -> None:
        """``settled`` is called when nothing is being written any more."""
        self._share = share
        self._persister = persister
        self._supervisor = supervisor
        self._settled = settled
        self.state_epoch = 0
        self.generation = 0
        self._tried_generation = 0
        """The highest one that a write had, which may have failed."""
        self.is_writing = False
        self._waiting: list[_Waiting] = []
        self._reopenings: list[_Reopening] = []
        self._unopened: list[OffsetRange] = []
        """What writes have failed to open again since the last one that succeeded."""
        self._unasked: list[OffsetRange] = []
        """What has changed without a member's request."""
        self._being_written: list[OffsetRange] = []
        """That which the write under way has of it."""
        self._has_written_in_turn = False

    def begin(self, state: ShareState) -> None:
        """``state`` was read."""
        self.state_epoch = state.state_epoch
        self.generation = self._tried_generation = state.generation

    @property
    def is_unsure(self) -> bool:
        """Whether a write that replaces the state has failed, and may still arrive."""
        return self._tried_generation > self.generation

    @property
    def unwritten(self) -> list[OffsetRange]:
        """What has changed without a member's request and is not written."""
        return merged([*self._unasked, *self._being_written])

    def acknowledged(self, ranges: Sequence[OffsetRange]) -> "asyncio.Future[KafkaError | None] | KafkaError | None":
        """Returns None if the result is written, the error if it cannot be, or a future of either."""
        key = self._share.key
        if self.is_writing or self._has_written_in_turn or not self._persister.commits_at_once(key):
            return self._written_soon(ranges)
        self._has_written_in_turn = True
        asyncio.get_running_loop().call_soon(self._turn_ended)
        self._waiting.append(_Waiting(ranges, None))
        write = self._next_write()
        assert write is not None
        try:
            is_written = self._persister.write_now(key, write.state)
        except (KafkaError, StorageError) as error:
            self._failed(write, error)
            return error_for_member(error)
        if is_written:
            self._succeeded(write)
            self._settled()
            return None
        written: asyncio.Future[KafkaError | None] = asyncio.get_running_loop().create_future()
        write.waiting[-1] = _Waiting(ranges, written)
        self._spawn(write)
        return written

    def _turn_ended(self) -> None:
        self._has_written_in_turn = False

    def _written_soon(self, ranges: Sequence[OffsetRange]) -> "asyncio.Future[KafkaError | None]":
        """Returns a future that is done when the result is written, with None or the error."""
        written: asyncio.Future[KafkaError | None] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Waiting(ranges, written))
        self._write_soon()
        return written

    def changed(self, ranges: Sequence[OffsetRange]) -> None:
        self._unasked.extend(ranges)
        self._write_soon()

    def flushed(self, ranges: Sequence[OffsetRange]) -> "asyncio.Future[KafkaError | None]":
        """As ``changed``. Returns a future that is done when this is written, and everything that has changed
        before."""
        self._unasked.extend(ranges)
        if self._unasked or self.is_writing:
            return self._written_soon(())
        written: asyncio.Future[KafkaError | None] = asyncio.get_running_loop().create_future()
        written.set_result(None)
        return written

    def reopen(self, ranges: Sequence[OffsetRange]) -> "asyncio.Future[int | KafkaError]":
        written: asyncio.Future[int | KafkaError] = asyncio.get_running_loop().create_future()
        self._reopenings.append(_Reopening(ranges, written))
        self._write_soon()
        return written

    def fail(self, error: KafkaError) -> None:
        """Fails all requests that wait for the next write. The one under way may still succeed."""
        _set_results(self._waiting, error)
        _set_results(self._reopenings, error)
        self._waiting, self._reopenings = [], []

    def _write_soon(self) -> None:
        if not self.is_writing:
            self._spawn()

    def _spawn(self, begun: _Write | None = None) -> None:
        self.is_writing = True
        name = f"write the share partition {self._share.key.coordinator_key}"
        self._supervisor.spawn(name, self._write_all(begun))

    async def _write_all(self, begun: _Write | None) -> None:
        """Writes until nothing has changed. After a failure, changes without a waiting request stay for the next write.

        A task begins in the next turn of the event loop, so the first write has everything of the turn before, unless
        it was ``begun`` already.
        """
        try:
            has_failed = begun is not None and not await self._carry_out(begun)
            while self._share.error is None and (
                self._waiting or self._reopenings or (self._unasked and not has_failed)
            ):
                write = self._next_write()
                has_failed = write is not None and not await self._carry_out(write)
        finally:
            self.is_writing = False
            self._being_written = []
        if self._share.error is None and not self._waiting and not self._reopenings:
            self._settled()

    def _next_write(self) -> _Write | None:
        """Returns a write of everything that has changed; None if there is nothing to write."""
        share, window = self._share, self._share.window
        assert window is not None
        waiting, self._waiting = self._waiting, []
        reopenings, self._reopenings = self._reopenings, []
        self._being_written, self._unasked = self._unasked, []
        ranges = [*self._being_written, *(one for acknowledged in waiting for one in acknowledged.ranges)]
        opened: list[OffsetRange] = []
        if reopenings or self._unopened:
            asked = [one for each in reopenings for one in each.ranges]
            opened = window.finished([*self._unopened, *asked], share.log_start_offset)
        if not ranges and not opened:
            _set_results(waiting, None)
            _set_results(reopenings, 0)
            return None
        replaces = bool(opened) or self.is_unsure
        changed = window.opened(opened) if replaces else window.to_write(ranges)
        self._tried_generation = self._tried_generation + 1 if replaces else self.generation
        state = ShareState(self.state_epoch, share.leader_epoch, *changed, generation=self._tried_generation)
        return _Write(window, state, waiting, reopenings, opened)

    async def _carry_out(self, write: _Write) -> bool:
        try:
            await self._persister.write(self._share.key, write.state)
        except (KafkaError, StorageError) as error:
            self._failed(write, error)
            return False
        self._succeeded(write)
        return True

    def _succeeded(self, write: _Write) -> None:
        window, state, waiting, reopenings, opened = write
        self._being_written = []
        self.generation = state.generation
        window.written()
        for acknowledged in waiting:
            window.commit(acknowledged.ranges)
        _set_results(waiting, None)
        if opened:
            window.open(opened)
        self._unopened = []
        for each in reopenings:
            # Offsets that two of them have are counted for both.
            _set_results([each], _overlap(opened, merged(each.ranges)))
        self._share.written(window, state.batches)

    def _failed(self, write: _Write, error: KafkaError | StorageError) -> None:
        share, window = self._share, write.window
        _set_results(write.reopenings, error_for_member(error))
        self._unopened = merged([*self._unopened, *write.opened])
        released = [one for acknowledged in write.waiting for one in share.roll_back(window, acknowledged.ranges)]
        self._unasked = merged([*self._being_written, *released, *self._unasked])
        self._being_written = []
        logger.warning("the state of share partition %s was not written: %s", share.key.coordinator_key, error)
        _set_results(write.waiting, error_for_member(error))
        if isinstance(error, KafkaError) and error.code in ENDED_BY:
            share.end(error_for_member(error))
        else:
            share.not_written(window, released)


def _set_results(waiting: Sequence[_Waiting | _Reopening], result: object) -> None:
    for one in waiting:
        if one.written is not None and not one.written.done():
            one.written.set_result(result)  # type: ignore[arg-type]


def _overlap(ranges: Sequence[OffsetRange], others: Sequence[OffsetRange]) -> int:
    """Returns how many offsets are in both; each is ascending and disjoint."""
    count = number = 0
    for first, last in ranges:
        while number < len(others) and others[number][1] < first:
            number += 1
        at = number
        while at < len(others) and others[at][0] <= last:
            count += min(last, others[at][1]) - max(first, others[at][0]) + 1
            at += 1
    return count


def error_for_member(error: KafkaError | StorageError) -> KafkaError:
    """Returns the error that a member gets for an error of the persister, as in Kafka."""
    if isinstance(error, StorageError):
        return KafkaError(ErrorCode.kafka_storage_error, str(error))
    if error.code in ENDED_BY:
        return KafkaError(ENDED_BY[error.code], error.detail)
    if error.code in _COORDINATOR_MOVES:
        return KafkaError(ErrorCode.coordinator_not_available, error.detail)
    if error.code in (ErrorCode.offset_not_available, ErrorCode.not_leader_or_follower):
        return error
    return KafkaError(ErrorCode.unknown_server_error, error.detail)
