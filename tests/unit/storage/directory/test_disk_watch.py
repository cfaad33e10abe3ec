"""What a filling disk leads to."""

from dataclasses import replace

import pytest

from skep.base.config.broker_config import BrokerConfig
from skep.base.files.files import DiskSpace
from skep.base.ids import TopicPartition
from skep.storage.directory.disk_watch import DiskDecision, decide, segments_to_force
from skep.storage.log.retention import SegmentView

AT_FOUR = replace(BrokerConfig(), retention_hour=4, disk_force_ratio=0.85)


@pytest.mark.parametrize(
    ("used", "hour", "decision"),
    [
        (50, 3, DiskDecision(False, 0, False)),
        (50, 4, DiskDecision(True, 0, False)),
        (75, 3, DiskDecision(False, 0, False)),
        (76, 3, DiskDecision(True, 0, False)),
        (85, 3, DiskDecision(True, 0, False)),
        (88, 3, DiskDecision(True, 3, False)),
        (90, 3, DiskDecision(True, 5, False)),
        (91, 3, DiskDecision(True, 6, True)),
    ],
)
def test_the_steps_follow_the_ratios(used: int, hour: int, decision: DiskDecision) -> None:
    assert decide(DiskSpace(used, 100), AT_FOUR, hour) == decision


@pytest.mark.parametrize("used", [86, 91, 100])
def test_nothing_goes_before_it_has_expired_unless_that_is_asked_for(used: int) -> None:
    assert decide(DiskSpace(used, 100), BrokerConfig(), 13).bytes_to_free == 0


def test_without_a_set_hour_expired_segments_go_at_any_time() -> None:
    assert decide(DiskSpace(10, 100), BrokerConfig(), 13).delete_expired


A, B = TopicPartition("a", 0), TopicPartition("b", 0)


def segments(*timestamps: int, size: int = 10) -> list[SegmentView]:
    return [SegmentView(10 * n, 10 * n + 10, size, timestamp) for n, timestamp in enumerate(timestamps)]


def test_the_oldest_of_all_logs_go_first_until_enough_is_free() -> None:
    logs = {A: segments(1, 5, 9), B: segments(2, 3, 4)}
    assert segments_to_force(logs, 0) == {}
    assert segments_to_force(logs, 1) == {A: 1}
    assert segments_to_force(logs, 11) == {A: 1, B: 1}
    assert segments_to_force(logs, 30) == {A: 1, B: 2}


def test_active_segments_never_go() -> None:
    assert segments_to_force({A: segments(1, 2, 3), B: segments(1)}, 10**9) == {A: 2}
