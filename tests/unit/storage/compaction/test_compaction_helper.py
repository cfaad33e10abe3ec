"""What the helper process does besides the passes: it keeps to a rate, and speaks in whole messages."""

import json

import pytest

from skep.storage.compaction.compaction_helper import LENGTH, Throttle, encode


class ManualTime:
    """Sleeping moves the clock; nothing else does but the test."""

    def __init__(self) -> None:
        self.now = 100.0
        self.slept: list[float] = []

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.slept.append(seconds)
        self.now += seconds


@pytest.fixture
def time() -> ManualTime:
    return ManualTime()


def throttle(time: ManualTime, bytes_per_second: int) -> Throttle:
    return Throttle(bytes_per_second, time.monotonic, time.sleep)


def test_bytes_wait_for_their_share_of_a_second(time: ManualTime) -> None:
    limit = throttle(time, 1000)
    limit.spend(500)
    limit.spend(250)
    assert time.slept == [0.5, 0.25]


def test_time_that_work_took_is_not_waited_for_again(time: ManualTime) -> None:
    limit = throttle(time, 1000)
    time.now += 0.4
    limit.spend(500)
    assert time.slept == [pytest.approx(0.1)]
    time.now += 3
    limit.spend(1000)
    assert len(time.slept) == 1, "slow work needs no brake"


def test_the_average_is_kept_over_a_whole_pass(time: ManualTime) -> None:
    limit = throttle(time, 1000)
    for n in range(1, 50):
        time.now += 0.01 * (n % 3)
        limit.spend(37 * n)
        assert 37 * n * (n + 1) / 2 <= 1000 * (time.now - 100.0) + 1e-6
    assert time.now - 100.0 == pytest.approx(37 * 49 * 50 / 2 / 1000)


def test_without_a_limit_nothing_waits(time: ManualTime) -> None:
    throttle(time, 0).spend(1 << 40)
    assert time.slept == []


@pytest.mark.parametrize("rows", [0, 1, 999, 1000, 1001, 2000, 2500])
def test_a_message_is_its_length_and_json_however_long_its_lists_are(rows: int) -> None:
    message = {"rows": [[n, -n] for n in range(rows)], "text": 'say "é"', "more": {"inner": [1, 2]}, "none": None}
    data = encode(message)
    assert LENGTH.unpack_from(data) == (len(data) - LENGTH.size,)
    assert json.loads(data[LENGTH.size :]) == message
