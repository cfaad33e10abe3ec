"""Requests dead letters for the records that share groups have given up, and then archives the records.

A share partition has such records in state ARCHIVING, in its written state, until their letters are committed. The
worker writes the letters (``worker/dead_letter_copier.py``, which says how each is written once). This module sends it
requests until they succeed, or until the share partition ends: a record is never archived without its letter. If that
takes long, the window fills up, and the share partition pauses.

Requests. One is under way for a share partition at a time. The next one is sent when the records of the last one are
archived in the written state, and names the last one (``after``): the worker relies on both.

Left out
    After a broker has died, the letters that were under way are written when a member of the group fetches again.
"""

import asyncio
import logging
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from skep.base.config.current_config import CurrentConfig
from skep.base.config.share_group_config import ShareGroupConfig
from skep.base.config.topic_config import TopicConfig
from skep.base.errors import KafkaError, StorageError, StoreUnavailable
from skep.base.loop.supervisor import Supervisor
from skep.broker.share.dead_letter_topic import DeadLetterPartition, Unsuitable, dead_letter_partition
from skep.broker.worker.worker_process import WorkerFailed
from skep.coordination.share.delivery_runs import OffsetRange
from skep.coordination.share.share_state import DeadLetters, Reason, SharePartitionKey
from skep.metadata.cluster_image import ClusterImage
from skep.metadata.model import TopicRecord

logger = logging.getLogger(__name__)

JOB = "dead-letters"
MAX_RECORDS, MAX_RANGES = 256, 64
"""Of one request, which is one transaction. The ranges fit into the metadata of one offset commit, of 4,096 bytes."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.2, 30.0
REPLY_S = 120.0
"""A worker that takes longer is hung. Another request of the same share partition fences what it does."""


REASONS = {
    Reason.NONE: "",
    Reason.REJECTED: "Offset rejected by client.",
    Reason.LIMIT: "Offset delivery count exceeded the threshold.",
    Reason.EXPIRED: "The record is older than skep.share.record.ttl.ms.",
    Reason.DELETED: "Deleted from its topic (retention) before it was done with.",
}
"""The reason in a letter if no member has given one. The first two are Kafka's texts."""


class DeadSharePartition(Protocol):
    """What is used of a share partition."""

    key: SharePartitionKey
    error: KafkaError | None

    @property
    def generation(self) -> str:
        """Changes when finished offsets are opened again."""

    @property
    def topic(self) -> str: ...

    def dead_letters(self) -> Sequence[DeadLetters]:
        """Returns the offsets that need letters, ascending. That they do is written."""

    def dead_letters_written(self, ranges: Sequence[OffsetRange]) -> Awaitable[KafkaError | None]:
        """Archives those of the offsets that are in state ARCHIVING. The result is there when that is written."""


class Worker(Protocol):
    async def ask(self, job: str, request: dict[str, Any]) -> dict[str, Any]: ...


class DeadLetterContext(NamedTuple):
    """What the copies of all share partitions use."""

    worker: Worker
    image: Callable[[], ClusterImage]
    config: CurrentConfig
    options: Callable[[str], ShareGroupConfig]
    config_of: Callable[[TopicRecord], TopicConfig]
    create_topic: Callable[[str], Awaitable[None]]
    supervisor: Supervisor


@dataclass
class _Copies:
    """What is known of the copies of one share partition."""

    after: str | None = None
    """The last request whose records are archived in the written state."""
    is_resolved: bool = False
    """Whether the outcome of every request is known and written. False at first: an earlier leader may have asked."""
    task: "asyncio.Task[None] | None" = None
    problem: str | None = None
    holds: int = 0
    """How many callers keep the next request back."""


class DeadLetterWriter:
    """Owns a task for each share partition that has dead letters."""

    def __init__(self, context: DeadLetterContext, first_pause_s: float = FIRST_PAUSE_S) -> None:
        self._context = context
        self._first_pause_s = first_pause_s
        self._copies: weakref.WeakKeyDictionary[DeadSharePartition, _Copies] = weakref.WeakKeyDictionary()
        self._changed = asyncio.Event()
        self._sleepers = 0
        self._is_stopping = False

    def added(self, share: DeadSharePartition) -> None:
        """Writes the letters that the share partition needs, if it needs any."""
        copies = self._of(share)
        if copies.task is None and not self._is_stopping and share.error is None:
            name = f"write the dead letters of {share.key.coordinator_key}"
            copies.task = self._context.supervisor.spawn(name, self._copy_all(share, copies))

    def is_busy(self, share: DeadSharePartition) -> bool:
        """Whether letters are being written, or will be."""
        copies = self._copies.get(share)
        return copies is not None and copies.task is not None

    def problem(self, share: DeadSharePartition) -> str | None:
        """Returns why letters of the share partition cannot be written."""
        copies = self._copies.get(share)
        return None if copies is None else copies.problem

    def may_have_changed(self) -> None:
        """Topics or options have changed: what did not work may work now."""
        if self._sleepers:
            self._changed.set()
            self._changed = asyncio.Event()

    @asynccontextmanager
    async def held(self, share: DeadSharePartition) -> AsyncIterator[bool]:
        """Keeps new requests back. Yields whether the outcome of all earlier ones is known and written; if not, waits
        for the one that is under way."""
        copies = self._of(share)
        copies.holds += 1
        try:
            while share.error is None and not self._is_known(share, copies) and copies.problem is None:
                await self._wait(self._first_pause_s)
                self.added(share)
            yield self._is_known(share, copies)
        finally:
            copies.holds -= 1
            self.may_have_changed()

    @staticmethod
    def _is_known(share: DeadSharePartition, copies: _Copies) -> bool:
        return copies.is_resolved or (copies.task is None and not share.dead_letters())

    async def stop(self) -> None:
        self._is_stopping = True
        tasks = [copies.task for copies in self._copies.values() if copies.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _of(self, share: DeadSharePartition) -> _Copies:
        return self._copies.setdefault(share, _Copies())

    async def _copy_all(self, share: DeadSharePartition, copies: _Copies) -> None:
        pause_s = self._first_pause_s
        try:
            while share.error is None and not self._is_stopping and (dead := share.dead_letters()):
                if copies.holds and copies.is_resolved:
                    await self._wait(self._first_pause_s)
                    continue
                try:
                    await self._copy(share, copies, dead)
                except (Unsuitable, WorkerFailed, KafkaError, StorageError, StoreUnavailable, TimeoutError) as error:
                    self._failed(share, copies, str(error) or type(error).__name__)
                    await self._wait(pause_s)
                    pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
                else:
                    pause_s = self._first_pause_s
                    self._succeeded(share, copies)
        finally:
            copies.task = None

    async def _wait(self, pause_s: float) -> None:
        self._sleepers += 1
        try:
            # Not wait_for: in Python 3.11 it forgets a cancellation that comes together with the event.
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._changed.wait()
        finally:
            self._sleepers -= 1

    async def _copy(self, share: DeadSharePartition, copies: _Copies, dead: Sequence[DeadLetters]) -> None:
        """Has letters for some of the records written, and the records archived."""
        options = self._context.options(share.key.group_id)
        if not options.dead_letter_topic:
            count = sum(last - first + 1 for first, last, *_ in dead)
            logger.info("%s has no dead-letter topic any more: %d records have no letter", _name(share), count)
            await self._archived(share, [(first, last) for first, last, *_ in dead])
            return
        target = await self._target(share, options.dead_letter_topic)
        request = self._request(share, target, options, copies.after, first_of(dead))
        copies.is_resolved = False
        async with asyncio.timeout(REPLY_S):
            reply = await self._context.worker.ask(JOB, request)
        await self._archived(share, [(first, last) for first, last in reply["ranges"]])
        copies.after, copies.is_resolved = reply["serial"], True

    async def _archived(self, share: DeadSharePartition, ranges: Sequence[OffsetRange]) -> None:
        if (error := await share.dead_letters_written(ranges)) is not None:
            raise error

    async def _target(self, share: DeadSharePartition, name: str) -> DeadLetterPartition:
        try:
            return self._target_now(share, name)
        except Unsuitable as error:
            if not error.is_missing or not self._context.config.value.share.dead_letter_auto_create:
                raise
        await self._context.create_topic(name)
        return self._target_now(share, name)

    def _target_now(self, share: DeadSharePartition, name: str) -> DeadLetterPartition:
        context = self._context
        return dead_letter_partition(
            name, share.topic, share.key.partition, context.image(), context.config.value.share, context.config_of
        )

    def _request(
        self,
        share: DeadSharePartition,
        target: DeadLetterPartition,
        options: ShareGroupConfig,
        after: str | None,
        ranges: Sequence[DeadLetters],
    ) -> dict[str, Any]:
        source = self._context.image().topics.get(share.topic)
        return {
            "group": share.key.group_id,
            "topic": share.topic,
            "topic_id": str(share.key.topic_id),
            "partition": share.key.partition,
            "generation": share.generation,
            "after": after,
            "dlq_topic": target.topic,
            "dlq_partition": target.partition,
            "max_message_bytes": target.max_message_bytes,
            "copy": options.dead_letter_copy_record,
            "compacted": source is not None and self._context.config_of(source).is_compacted,
            "ranges": [(one.first, one.last, one.delivery_count, one.text or REASONS[one.reason]) for one in ranges],
        }

    # Log lines.

    def _failed(self, share: DeadSharePartition, copies: _Copies, problem: str) -> None:
        if problem != copies.problem and share.error is None:
            logger.warning("dead letters of %s cannot be written, its records wait: %s", _name(share), problem)
        copies.problem = problem

    def _succeeded(self, share: DeadSharePartition, copies: _Copies) -> None:
        if copies.problem is not None:
            logger.info("dead letters of %s are written again", _name(share))
        copies.problem = None


def first_of(dead: Sequence[DeadLetters]) -> list[DeadLetters]:
    """Returns the first offsets, as many as one request has."""
    chosen: list[DeadLetters] = []
    left = MAX_RECORDS
    for one in dead[:MAX_RANGES]:
        chosen.append(one._replace(last=min(one.last, one.first + left - 1)))
        left -= chosen[-1].last - one.first + 1
        if left == 0:
            break
    return chosen


def _name(share: DeadSharePartition) -> str:
    return f"group {share.key.group_id!r} for {share.topic}-{share.key.partition}"
