"""Decides what to do about a disk that fills up. No I/O; ``Housekeeping`` reads the disk space and acts.

Three steps, each with its option: above ``skep.disk.clean.ratio`` expired segments are deleted at once and not at the
configured hour, above ``skep.disk.force.ratio`` the oldest segments are deleted although they have not expired, above
``skep.disk.refuse.ratio`` produce is refused. The steps add up. The second is off by default: otherwise anything that
fills the disk, this broker or another program, would delete records that others expect to be kept.
"""

import heapq
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from skep.base.config.broker_config import BrokerConfig
from skep.base.files.files import DiskSpace
from skep.base.ids import TopicPartition
from skep.storage.log.retention import SegmentView


class DiskDecision(NamedTuple):
    delete_expired: bool
    bytes_to_free: int
    """By deleting segments that have not expired; 0: none."""
    refuse_produce: bool


def decide(space: DiskSpace, config: BrokerConfig, hour: int) -> DiskDecision:
    """``hour`` is the local hour of the day, 0 to 23."""
    is_the_hour = config.retention_hour in (-1, hour)
    excess = space.used_bytes - int(config.disk_force_ratio * space.total_bytes)
    return DiskDecision(
        delete_expired=is_the_hour or space.used_ratio > config.disk_clean_ratio,
        bytes_to_free=max(excess, 0) if space.used_ratio > config.disk_force_ratio else 0,
        refuse_produce=space.used_ratio > config.disk_refuse_ratio,
    )


def segments_to_force(
    logs: Mapping[TopicPartition, Sequence[SegmentView]], bytes_to_free: int
) -> dict[TopicPartition, int]:
    """Returns how many of its oldest segments each log has to delete: the oldest of all logs first, never an active
    one.

    Their files must be removed without the delay for readers; otherwise the next check would still find the disk full
    and delete more.
    """
    counts: dict[TopicPartition, int] = {}
    heap = [(segments[0].timestamp, name) for name, segments in logs.items() if len(segments) > 1]
    heapq.heapify(heap)
    freed = 0
    while heap and freed < bytes_to_free:
        _, name = heapq.heappop(heap)
        segments = logs[name]
        taken = counts.get(name, 0)
        freed += segments[taken].size
        counts[name] = taken + 1
        if taken + 2 < len(segments):
            heapq.heappush(heap, (segments[taken + 1].timestamp, name))
    return counts
