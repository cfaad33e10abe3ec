"""What a log consists of when it is opened: what recovery has found, and the log goes on from."""

from typing import NamedTuple

from skep.base.ids import Offset
from skep.storage.log.leader_epochs import LeaderEpochs
from skep.storage.producers.producers import Producers
from skep.storage.segment.segment import Segment


class LogContent(NamedTuple):
    """What there is on disk, as recovery found it; a partition that was never written to has no segments."""

    segments: list[Segment]
    log_start_offset: Offset
    flushed_offset: Offset
    log_end_offset: Offset
    leader_epochs: LeaderEpochs
    producers: Producers
    snapshot_offset: Offset
    """Where the newest good snapshot of the producers was taken; -1 when there is none."""
    is_recovered: bool
    """Whether the closing plan is to be run before the log is used."""
    new_indexes: list[Segment]
    """Sealed segments whose indexes were made again and are not all written yet."""
    opened_ms: int
    has_gaps: bool
    """Whether it is noted on disk that offsets may be missing; see ``names.OFFSET_GAPS``."""
    is_synced: bool
    """Whether it is noted on disk that all that was acknowledged was synced before; see ``names.SYNCED``."""
    lost_data: bool
    """Whether something is missing that a crash of the process alone cannot have taken."""


def empty_content(now_ms: int, max_producers: int) -> LogContent:
    """Of a partition that was never written to."""
    return LogContent(
        segments=[],
        log_start_offset=Offset(0),
        flushed_offset=Offset(0),
        log_end_offset=Offset(0),
        leader_epochs=LeaderEpochs(),
        producers=Producers(max_producers),
        snapshot_offset=Offset(-1),
        is_recovered=False,
        new_indexes=[],
        opened_ms=now_ms,
        has_gaps=False,
        is_synced=False,
        lost_data=False,
    )
