"""A record that waits for its next delivery gets another time."""

import pytest

from skep.base.errors import ErrorCode, KafkaError
from skep.coordination.share.delivery_runs import Hint
from skep.coordination.share.share_state import DeliveryState, StateBatch
from tests.unit.coordination.share.test_share_retries import LOCK_MS, NOW_MS, RELEASE, acquire, settle, window, written

AVAILABLE = DeliveryState.AVAILABLE


def test_a_record_that_waits_is_delivered_at_once_if_told() -> None:
    share = window()
    acquire(share, (0, 9))
    settle(share, 0, 9, RELEASE)
    assert (share.waits(4), share.waiting) == (True, 10)
    assert share.reschedule(4, NOW_MS, NOW_MS) == [(4, 4)]
    assert (share.waits(4), share.waiting) == (False, 9)
    assert acquire(share, (0, 9)) == [(4, 4, 2)]
    assert share.next_time_ms == NOW_MS + 1_000, "the others wait as before"
    share.wake(NOW_MS + 1_000)
    assert share.next_fetch_offset == 0


def test_a_record_that_waits_is_delivered_later_if_told() -> None:
    share = window()
    acquire(share, (0, 1))
    settle(share, 0, 1, RELEASE)
    assert share.reschedule(0, NOW_MS + 60_000, NOW_MS) == [(0, 0)]
    assert written(share, 0, 1) == [
        StateBatch(0, 0, AVAILABLE, 1, 1, NOW_MS + 60_000),
        StateBatch(1, 1, AVAILABLE, 1, 1, NOW_MS + 1_000),
    ]
    assert share.wake(NOW_MS + 1_000)
    assert acquire(share, (0, 1)) == [(1, 1, 2)]
    assert not share.wake(NOW_MS + 59_999)
    assert share.wake(NOW_MS + 60_000)
    assert acquire(share, (0, 1)) == [(0, 0, 2)]


@pytest.mark.parametrize("offset", [-1, 0, 1, 2, 9, 2**62])
def test_only_a_record_that_waits_is_rescheduled(offset: int) -> None:
    share = window()
    acquire(share, (0, 2), most=2)
    share.delay(0, Hint(0))
    settle(share, 0, 0, RELEASE)
    assert not share.waits(offset)
    with pytest.raises(KafkaError) as refused:
        share.reschedule(offset, NOW_MS, NOW_MS)
    assert refused.value.code is ErrorCode.invalid_record_state
    assert share.expire(LOCK_MS, now_ms=NOW_MS) == [(1, 1)]
    assert share.waits(1)
