"""What recovery has found of a log, and what the log starts with."""

from typing import NamedTuple

from skep.base.ids import Offset
from skep.storage.log.leader_epochs import LeaderEpochs
from skep.storage.producers.producers import Producers
from skep.storage.segment.segment import Segment


class LogContent(NamedTuple):
    """The content of a log as recovery found it on disk. A partition that was never written to has no segments."""

    segments: list[Segment]
    log_start_offset: Offset
    flushed_offset: Offset
    log_end_offset: Offset
    leader_epochs: LeaderEpochs
    producers: Producers
    snapshot_offset: Offset
    """The offset of the newest good snapshot of the producers; -1 when there is none."""
    is_recovered: bool
    """Whether the closing plan has to run before the log is used."""
    new_indexes: list[Segment]
    """Sealed segments whose indexes were rebuilt and are not completely written yet."""
    opened_ms: int
    has_gaps: bool
    """Whether the file ``offset-gaps`` exists; see ``file_names.OFFSET_GAPS``."""
    is_synced: bool
    """Whether the file ``synced`` exists; see ``file_names.SYNCED``."""
    lost_data: bool
    """Whether records are missing that a process crash cannot explain."""


def empty_content(now_ms: int, max_producers: int) -> LogContent:
    """The content of a partition that was never written to."""
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
