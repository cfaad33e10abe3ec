"""A share window of twenty thousand runs: ``python -m bench.experiments.share_runs``. CPU milliseconds of each call."""

import statistics
import time
import uuid
from collections.abc import Callable, Iterator

from skep.base.config.retry_backoff import RetryBackoff
from skep.coordination.share.acknowledgement import Acknowledgement, AcknowledgeType
from skep.coordination.share.acquisition import Order
from skep.coordination.share.delivery_rules import DeliveryRules
from skep.coordination.share.share_records import ShareSnapshotKey, ShareSnapshotValue, decode_share_record
from skep.coordination.share.share_state import DeliveryState, SharePartitionKey, StateBatch
from skep.coordination.share.share_window import ShareWindow

RUNS = 20_000
NOW_MS = 1_700_000_000_000
LATER_MS = NOW_MS + 1_000_000
DUE = 30_000.0
RULES = DeliveryRules(
    5, max_locks=2 * RUNS, max_waiting=2 * RUNS, counts_failures=True, backoff=RetryBackoff((1_000, 5_000))
)
WHOLE_LOG = [(0, 4 * RUNS)]


def main() -> None:
    for name, make in (("waiting", waiting), ("ready", ready), ("held", held)):
        window = make()
        print(f"every other record is {name}, the others are accepted: {len(list(window.runs))} runs")
        measure_deliveries(window)
        if name == "held":
            measure_held(window)
        if name == "waiting":
            measure_waiting(window)
        measure_state(window)
    measure_records()


def waiting() -> ShareWindow:
    batches = [batch for n in range(RUNS // 2) for batch in (_waiting(2 * n), _accepted(2 * n + 1))]
    return ShareWindow.restored(0, batches, RULES)


def ready() -> ShareWindow:
    return ShareWindow.restored(0, [_accepted(2 * n + 1) for n in range(RUNS // 2)], RULES)


def held() -> ShareWindow:
    window = ready()
    while window.next_fetch_offset < RUNS:
        window.acquire(Order("m1", 500, 500, is_record_limit=True), WHOLE_LOG, DUE)
    return window


def _waiting(offset: int) -> StateBatch:
    return StateBatch(offset, offset, DeliveryState.AVAILABLE, 1, 1, LATER_MS + offset)


def _accepted(offset: int) -> StateBatch:
    return StateBatch(offset, offset, DeliveryState.ACKNOWLEDGED, 1)


def measure_deliveries(window: ShareWindow) -> None:
    measure("next_fetch_offset, can_acquire", lambda: (window.next_fetch_offset, window.can_acquire))
    measure("reach", lambda: window.reach(500))
    measure("acquire 500", lambda: window.acquire(Order("m2", 500, 500, is_record_limit=True), WHOLE_LOG, 2 * DUE), 5)
    offsets = _held_by(window, "m2")
    acknowledged = [(offset, offset) for offset in offsets][:40]
    each = iter(acknowledged)
    measure("acknowledge 1", lambda: _acknowledge(window, next(each), AcknowledgeType.ACCEPT), 20)
    measure("to_write 1", lambda: window.to_write(acknowledged[:1]))
    written = iter(acknowledged)
    measure("commit 1", lambda: window.commit([next(written)]), 20)
    measure(
        "release and commit 1", lambda: window.commit(_acknowledge(window, next(each), AcknowledgeType.RELEASE)), 20
    )
    measure("expire, wake: nothing is due", lambda: (window.expire(0.0, now_ms=0), window.wake(0)))
    measure("next_due, next_time_ms", lambda: (window.next_due, window.next_time_ms))


def _held_by(window: ShareWindow, member: str) -> list[int]:
    runs: Iterator[range] = (range(run.first, run.last + 1) for run in window.runs if run.member == member)
    return [offset for offsets in runs for offset in offsets]


def _acknowledge(window: ShareWindow, offsets: tuple[int, int], kind: int) -> list[tuple[int, int]]:
    return window.acknowledge("m2", [Acknowledgement(*offsets, [kind])], DUE, now_ms=NOW_MS)


def measure_held(window: ShareWindow) -> None:
    measure("10,000 locks expire, the first 250", lambda: window.expire(DUE, now_ms=NOW_MS), 1)
    measure("a member with 10,000 runs is gone, 250", lambda: window.release("m1", now_ms=NOW_MS), 1)
    measure("the next 250 of them", lambda: window.expire(0.0, now_ms=NOW_MS))


def measure_waiting(window: ShareWindow) -> None:
    measure("1 record is due", lambda: window.wake(window.next_time_ms or 0))
    measure("10,000 are due, the first 250 of them", lambda: window.wake(2 * LATER_MS), 1)


def measure_state(window: ShareWindow) -> None:
    measure("whole state", lambda: window.opened([]), 5)


def measure_records() -> None:
    batches = [batch for n in range(RUNS // 2) for batch in (_waiting(2 * n), _accepted(2 * n + 1))]
    value = ShareSnapshotValue(0, 0, 0, 0, 0, 0, 0, batches)
    key = ShareSnapshotKey(SharePartitionKey("group", uuid.uuid4(), 0)).encode()
    encoded = value.encode()
    print(f"a snapshot of {RUNS} batches has {len(encoded)} bytes")
    measure("encode", value.encode, 5)
    measure("decode", lambda: decode_share_record(key, encoded), 5)
    slices = ShareWindow.restoring(0, batches, RULES)
    measure("a slice of a new leader's window", lambda: next(slices), 80)
    measure("all of it", lambda: ShareWindow.restored(0, batches, RULES), 5)
    measure("500 delivered and accepted", delivered_and_accepted(ShareWindow(0, RULES)), 2_000)


def delivered_and_accepted(window: ShareWindow) -> Callable[[], object]:
    """What a poll of a group without failures does to its window."""

    def poll() -> None:
        first = window.end_offset
        window.acquire(Order("m2", 500, 500), [(first, first + 499)], DUE)
        ranges = _acknowledge(window, (first, first + 499), AcknowledgeType.ACCEPT)
        window.to_write(ranges)
        window.written()
        window.commit(ranges)

    return poll


def measure(what: str, call: Callable[[], object], times: int = 20) -> None:
    taken = []
    for _ in range(times):
        begin = time.thread_time()
        call()
        taken.append(1000 * (time.thread_time() - begin))
    print(f"    {what:40} median {statistics.median(taken):7.3f}  worst {max(taken):7.3f}")


if __name__ == "__main__":
    main()
