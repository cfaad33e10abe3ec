"""The command ``deliveries``: what a share group has in flight of a partition, and who holds it since when.

Arguments
    ``group``, ``topic``, ``partition``, ``topic_id``; ``limit``, how many runs are returned (0: only the counts);
    ``after``, the offset that the first of them has to be past: the ``next`` of the response before.

Result
    ``start``, ``end``: the window; null as long as the group has not begun to read the partition.
    ``high_watermark``: up to where there are records for the group.
    ``generation``: names the state until finished records are opened again, or offsets are reset.
    ``problem``: why the leader delivers nothing, or cannot write dead letters, and what to do; null if it can.
    ``is_active``: whether a member fetches from this leader. If not, this is the state that the next one will find.
    ``records``: how many of the window are ``available``, ``waiting`` for the time of their next delivery,
    ``acquired``, ``archiving`` (their dead letter is not written yet), and done: ``acknowledged``, ``archived``.
    ``runs``: neighbours of which the same is true, without those that are done: ``first``, ``last``, ``state`` (as
    above), ``delivery_count``, ``failures``. Of those that a member holds also ``member``, ``locked_at_ms`` (when the
    lock began or was renewed), ``lock_expires_ms``, and ``delay_ms`` and ``text`` if they were set with ``delay``. Of
    those that wait ``not_before_ms``, of those that are being archived ``reason``.
    ``next``: null if no runs are left.

The numbers are those of one moment; several responses are of several moments.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from skep.base.config.coordinator_config import SHARE_GROUP_STATE
from skep.base.errors import ErrorCode, KafkaError
from skep.base.loop.slicer import Work
from skep.broker.commands.command import Command, number
from skep.broker.commands.share_place import PLACE, place_of
from skep.broker.services import Services
from skep.coordination.share.delivery_runs import DONE, Run
from skep.coordination.share.share_state import (
    UNINITIALIZED,
    DeliveryState,
    Reason,
    SharePartitionKey,
    ShareState,
    generation_text,
)
from skep.replication.partition.partition import Partition

MAX_RUNS = 1000
WAITING = "waiting"
_RUNS_AT_ONCE = 500
_NAMES = {state: state.name.lower() for state in DeliveryState}


async def _deliveries(services: Services, arguments: Mapping[str, Any]) -> dict[str, Any]:
    key, partition = place_of(services, arguments)
    share = services.share_partitions.active(key)
    found: dict[str, Any] = {"start": None, "end": None, "records": {}, "runs": [], "next": None}
    found |= {"high_watermark": partition.high_watermark, "leader_epoch": partition.leader_epoch}
    found |= {"is_active": share is not None and share.window is not None, "generation": None, "problem": None}
    runs: Iterable[Run]
    if share is not None and share.window is not None:
        window = share.window
        # There may be 65,000. Runs never change, so a copy of the list can be looked at in slices.
        runs, found["start"], found["end"] = list(window.runs), window.start_offset, window.end_offset
        found |= {"generation": share.generation, "problem": share.problem}
    else:
        state = await _stored(services, key, partition)
        if state is None:
            return found
        end = state.batches[-1].last + 1 if state.batches else state.start_offset
        runs, found["start"], found["end"] = _runs_of(state), state.start_offset, end
        found["generation"] = generation_text(state.state_epoch, state.generation)
    shown = _Shown(services, key.group_id)
    await services.slicer.finish(shown.add_all(runs, arguments["after"], arguments["limit"]))
    return found | {"records": shown.counts, "runs": shown.runs, "next": shown.next}


async def _stored(services: Services, key: SharePartitionKey, partition: Partition) -> ShareState | None:
    """Returns the state that the next member would find; None if the group has not begun here."""
    if SHARE_GROUP_STATE not in services.catalog.image.topics:
        return None
    try:
        state = await services.share_partitions.stored(key, partition.leader_epoch)
    except KafkaError as error:
        if error.code is ErrorCode.invalid_request:
            return None  # the state is not initialized
        raise
    return None if state.start_offset == UNINITIALIZED else state


def _runs_of(state: ShareState) -> Iterator[Run]:
    end = state.start_offset
    for batch in state.batches:
        if batch.first > end:
            yield Run(end, batch.first - 1, DeliveryState.AVAILABLE)
        yield Run(
            batch.first,
            batch.last,
            batch.state,
            batch.delivery_count,
            failures=batch.failures,
            not_before_ms=batch.not_before_ms,
            reason=batch.reason,
        )
        end = batch.last + 1


class _Shown:
    """Counts the runs and describes some of them, as of the moment at which it is made."""

    def __init__(self, services: Services, group_id: str) -> None:
        self.counts: Counter[str] = Counter()
        self.runs: list[dict[str, Any]] = []
        self.next: int | None = None
        self._now_ms = services.clock.now_ms()
        # Locks are kept in the time of a monotonic clock, which nobody else can read.
        self._ahead_ms = self._now_ms - round(services.clock.monotonic() * 1000)
        self._lock_ms = services.share_partitions.options(group_id).record_lock_duration_ms

    def add_all(self, runs: Iterable[Run], after: int, limit: int) -> Work[None]:
        for count, run in enumerate(runs):
            if not count % _RUNS_AT_ONCE:
                yield
            state = self._state(run)
            self.counts[state] += run.last - run.first + 1
            if run.state in DONE or run.last <= after or not limit:
                continue
            if len(self.runs) < limit:
                self.runs.append(self._described(run._replace(first=max(run.first, after + 1)), state))
            elif self.next is None:
                self.next = self.runs[-1]["last"]

    def _state(self, run: Run) -> str:
        is_waiting = run.not_before_ms > self._now_ms and run.state is DeliveryState.AVAILABLE
        return WAITING if is_waiting else _NAMES[run.state]

    def _described(self, run: Run, state: str) -> dict[str, Any]:
        shown: dict[str, Any] = {
            "first": run.first,
            "last": run.last,
            "state": state,
            "delivery_count": run.delivery_count,
            "failures": run.failures,
        }
        if run.state is DeliveryState.ACQUIRED:
            expires_ms = round(run.due) + self._ahead_ms
            locked_at_ms = expires_ms - self._lock_ms
            shown |= {"member": run.member, "locked_at_ms": locked_at_ms, "lock_expires_ms": expires_ms}
            if run.hint is not None:
                shown |= {"delay_ms": run.hint.delay_ms, "text": run.hint.text}
        elif state == WAITING:
            shown["not_before_ms"] = run.not_before_ms
        elif run.reason is not Reason.NONE:
            shown["reason"] = run.reason.name.lower()
        return shown


COMMAND = Command(
    _deliveries, {**PLACE, "limit": number(most=MAX_RUNS, default=100), "after": number(least=-1, default=-1)}
)
