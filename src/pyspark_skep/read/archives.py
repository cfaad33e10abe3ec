"""The option ``archive``: a batch read takes offsets below the log start from the files of ``skep archive``.

Offsets from the log start on are read from the log, and those below it from the archive. Each offset is read from one
of the two, so no record is returned twice. Offsets that neither has are reported as lost.
"""

import dataclasses
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql.datasource import InputPartition

from pyspark_skep.read.data_loss import report_loss
from pyspark_skep.read.filters import Pushed
from pyspark_skep.read.lookup import Lookup, time_of
from pyspark_skep.read.offset_ranges import OffsetRange, split_ranges
from pyspark_skep.read.positions import EARLIEST, AtEnd, AtOffsets, Position
from pyspark_skep.read.read_options import ReadOptions
from pyspark_skep.read.row_schema import rows_of
from skep.base.errors import OptionError
from skep.base.ids import TopicPartition, show_topic_id
from skep.client.archive.archive_folder import Archive, ArchiveError, ArchiveFile, LostFiles, is_after, topic_folder
from skep.client.topic_info import TopicInfo

if TYPE_CHECKING:
    import pyarrow as pa


@dataclasses.dataclass(frozen=True)
class ArchivePartition(InputPartition):
    """The work of one task: a range of archived offsets and the files that hold them."""

    range: OffsetRange
    files: tuple[ArchiveFile, ...]


class Archives:
    """The archives of the topics that a query reads, as they were when it was planned."""

    def __init__(self, options: ReadOptions, topics: Mapping[str, TopicInfo]) -> None:
        """Raises OptionError if a topic has no archive, or if the archive belongs to another topic of the same name."""
        self._options = options
        self._archives = {name: open_archive(options, info) for name, info in topics.items()}

    def resolve(
        self,
        lookup: Lookup,
        position: Position,
        partitions: Collection[TopicPartition],
        log_starts: Mapping[TopicPartition, int],
    ) -> dict[TopicPartition, int]:
        """Resolves the position as ``Lookup.resolve`` does, over the archive and the log together."""
        if isinstance(position, AtEnd | AtOffsets):
            found = lookup.resolve(position, partitions)
            return {one: self._earliest(one, at) if _is_earliest(position, one) else at for one, at in found.items()}
        from skep.client.archive.archive_reader import first_offset_from

        found = {}
        for one in partitions:
            archive, timestamp_ms = self._archives[one.topic], time_of(position, one)
            offset = first_offset_from(archive, one.partition, timestamp_ms, log_starts[one])
            # A file that is missing may have held an earlier match.
            self._report_lost(
                archive.lost(one.partition, 0, log_starts[one] if offset is None else offset, timestamp_ms)
            )
            if offset is not None:
                found[one] = offset
        return found | lookup.resolve(position, [one for one in partitions if one not in found])

    def _earliest(self, one: TopicPartition, log_start: int) -> int:
        part = self._archives[one.topic].partitions.get(one.partition)
        # A partition that the archive does not know was added after the last run of ``skep archive``; it starts at 0.
        return 0 if part is None else min(part.start, log_start)

    def _report_lost(self, lost: Iterable[LostFiles]) -> None:
        for one in lost:
            report_loss(str(one), fail=self._options.fail_on_data_loss)

    def tasks(self, wanted: OffsetRange, pushed: Pushed, log_start: int) -> list[ArchivePartition]:
        """Returns the tasks that read a range below the log start. Days that the filters exclude are skipped."""
        from skep.client.archive.archive_reader import in_tasks

        archive = self._archives[wanted.topic]
        for first, end in archive.missing(wanted.partition, wanted.start, wanted.end):
            report_loss(
                f"{wanted.topic}-{wanted.partition}: offsets {first} to {end - 1} are neither in its log, which begins "
                f"at {log_start}, nor in the archive in {archive.folder}",
                fail=self._options.fail_on_data_loss,
            )
        times = pushed.from_timestamp_ms, pushed.until_timestamp_ms
        self._report_lost(archive.lost(wanted.partition, wanted.start, wanted.end, *times))
        found = []
        for piece in split_ranges([wanted], max_records_per_partition=self._options.max_records_per_partition):
            files = archive.files(piece.partition, piece.start, piece.end, pushed.from_timestamp_ms)
            chosen = [one for one in files if not is_after(one.date, pushed.until_timestamp_ms)]
            found += [ArchivePartition(piece, task) for task in in_tasks(chosen)]
        return found


def open_archive(options: ReadOptions, topic: TopicInfo) -> Archive:
    folder = topic_folder(Path(options.archive), topic.name)
    try:
        archive = Archive.open(folder)
    except ArchiveError as error:
        raise OptionError(
            f"archive: {error} (create one with: skep archive {topic.name} --to {options.archive})"
        ) from None
    if archive.topic_id != topic.topic_id:
        raise OptionError(
            f"archive: {folder} holds topic '{archive.topic}' with the id {show_topic_id(archive.topic_id)}, but "
            f"this topic has the id {show_topic_id(topic.topic_id)}: it was deleted and created again, "
            f"or it is in another cluster"
        )
    return archive


def read_archived(options: ReadOptions, task: ArchivePartition) -> "Iterator[pa.RecordBatch]":
    from skep.client.archive.archive_reader import read_files

    batches = read_files(task.files, task.range.start, task.range.end, headers=options.include_headers)
    return rows_of(batches, task.range, options.include_headers)


def read_gone(options: ReadOptions, gone: OffsetRange) -> "Iterator[pa.RecordBatch] | None":
    """Returns what the log has lost since the query was planned, or None if the archive lacks some of it."""
    archive = open_archive(options, TopicInfo(gone.topic, gone.topic_id, 0))
    place = gone.partition, gone.start, gone.end
    if archive.missing(*place) or archive.lost(*place):
        return None
    files = archive.files(*place)
    return read_archived(options, ArchivePartition(gone, tuple(files)))


def _is_earliest(position: AtEnd | AtOffsets, one: TopicPartition) -> bool:
    return (position.end if isinstance(position, AtEnd) else position.offsets[one]) == EARLIEST
