"""What has to be written of a share window, so that a new leader finds it, and the runs that it makes of that."""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from skep.base.errors import ErrorCode, KafkaError
from skep.coordination.share.delivery_runs import DONE, DeliveryRuns, OffsetRange, Run, merged
from skep.coordination.share.share_state import DeliveryState, StateBatch

_AVAILABLE, _ACQUIRED = DeliveryState.AVAILABLE, DeliveryState.ACQUIRED
_ARCHIVING, _ARCHIVED = DeliveryState.ARCHIVING, DeliveryState.ARCHIVED

RUNS_AT_ONCE = 250
"""How many batches become runs between two slices, in less than a millisecond."""


class Write(NamedTuple):
    """What has to be written for the changes since the last write."""

    start_offset: int
    delivery_complete_count: int
    batches: list[StateBatch]


def changed_state(runs: DeliveryRuns, ranges: Sequence[OffsetRange]) -> Write:
    """Returns the state of these offsets as it is when the pending results are committed, with the start where it will
    be then."""
    start, complete = runs.start, runs.complete
    for run in runs:
        if (run.state if run.target is None else run.target.state) not in DONE:
            break
        start = run.last + 1
        complete -= run.last - run.first + 1
    left = [(max(first, start), last) for first, last in merged(ranges) if last >= start]
    return Write(
        start, complete, _batches(run for first, last in left for run in runs.walk(first, last)) if left else []
    )


def whole_state(runs: DeliveryRuns) -> Write:
    """Returns the state of all offsets, as it is when the pending results are committed."""
    return Write(runs.start, runs.complete, _batches(runs))


def _batches(runs: Iterable[Run]) -> list[StateBatch]:
    batches: list[StateBatch] = []
    end, same = -1, None
    for run in runs:
        first, last, state, count, _, _, _, target, failures, not_before_ms, reason, _ = run
        if target is not None:
            state, failures, not_before_ms, reason = target
        # Without a result the record is available to the next leader, but this delivery counts.
        fields = (_AVAILABLE if state is _ACQUIRED else state, count, failures, not_before_ms, reason)
        if first == end and fields == same:
            batches[-1] = tuple.__new__(StateBatch, (batches[-1].first, last, *fields))
        else:
            batches.append(tuple.__new__(StateBatch, (first, last, *fields)))
        end, same = last + 1, fields
    return batches


def restored_runs(start_offset: int, batches: Sequence[StateBatch], *, has_dead_letters: bool) -> Iterator[list[Run]]:
    """Yields the runs of a state that a previous leader has written, some at a time. What it had delivered without a
    result is available.

    Raises UNKNOWN_SERVER_ERROR if the batches overlap or are not ascending.
    """
    runs: list[Run] = []
    end, is_first = start_offset, True
    for first, last, state, delivery_count, failures, not_before_ms, reason in batches:
        if last < first or (first < end and not is_first):
            raise KafkaError(ErrorCode.unknown_server_error, f"the share state has a wrong batch, {first}-{last}")
        if last < start_offset:
            continue
        first, is_first = max(first, start_offset), False
        if first > end:
            runs.append(Run(end, first - 1, _AVAILABLE, size=first - end))
        end = last + 1
        if state in DONE or (state is _ARCHIVING and not has_dead_letters):
            runs.append(Run(first, last, state if state in DONE else _ARCHIVED, delivery_count))
        elif state is _ARCHIVING:
            runs.append(Run(first, last, state, delivery_count, failures=failures, reason=reason))
        else:
            size = last - first + 1
            runs.append(Run(first, last, _AVAILABLE, delivery_count, "", 0.0, size, None, failures, not_before_ms))
        if len(runs) >= RUNS_AT_ONCE:
            yield runs
            runs = []
    yield runs
