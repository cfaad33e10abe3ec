"""Archives a topic to Parquet files, up to its present end; the next run continues there.

It archives committed records only, up to the oldest open transaction: what is archived never has to be taken back.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple
from uuid import UUID

import pyarrow as pa

from skep.base.ids import TopicPartition
from skep.client.archive.archive_folder import ArchiveError, topic_folder
from skep.client.archive.archive_writer import ArchiveWriter, Piece
from skep.client.cluster_client import ClusterClient
from skep.client.errors import OffsetOutOfRange
from skep.client.fetch.partition_reader import PartitionReader
from skep.client.list_offsets import EARLIEST, list_ends, list_offsets
from skep.client.topic_info import NO_ID, describe_topics
from skep.records.columnar import record_schema

PIECE_BYTES = 128 << 20
"""The size of records in memory at which they are written. Compressed files are smaller."""

Progress = Callable[[int, int], None]
"""Called with the number of offsets done, and of all."""


class PartitionResult(NamedTuple):
    partition: int
    start: int
    """Start of the archive after the run."""
    end: int
    records: int
    """Archived by this run."""
    gaps: list[tuple[int, int]]


class ArchiveResult(NamedTuple):
    topic: str
    folder: Path
    records: int
    files: int
    bytes: int
    partitions: list[PartitionResult]


def archive_topic(
    cluster: ClusterClient,
    topic: str,
    directory: Path,
    *,
    until_ms: int | None = None,
    allow_gaps: bool = False,
    piece_bytes: int = PIECE_BYTES,
    progress: Progress = lambda done, total: None,
) -> ArchiveResult:
    """Adds records to the archive up to the end of each partition, or up to its first record that is not older than
    ``until_ms``. The first run begins at the log start offset; a partition that was added since begins at 0.

    Raises ArchiveError when the folder is another topic's, or when the log has deleted records that were not archived;
    with ``allow_gaps`` these are recorded as a gap and the run continues.
    """
    info = describe_topics(cluster, [topic])[topic]
    if info.topic_id == NO_ID:
        raise ArchiveError(
            f"topic '{topic}' is on a broker without topic ids: the archive could not recognize it again"
        )
    with ArchiveWriter(topic_folder(directory, topic), topic, info.topic_id) as writer:
        run = _Run(cluster, topic, info.topic_id, writer, allow_gaps, piece_bytes)
        run.plan(info.partition_count, until_ms)
        done = 0
        progress(0, run.total)
        for offsets in run.go():
            done += offsets
            progress(done, run.total)
        return ArchiveResult(
            topic,
            topic_folder(directory, topic),
            sum(run.records.values()),
            writer.files_written,
            writer.bytes_written,
            [
                PartitionResult(number, part.start, part.end, run.records.get(number, 0), part.gaps)
                for number, part in sorted(writer.state.partitions.items())
            ],
        )


class _Run:
    """Owns the pieces that were read and not written yet."""

    def __init__(
        self,
        cluster: ClusterClient,
        topic: str,
        topic_id: UUID,
        writer: ArchiveWriter,
        allow_gaps: bool,
        piece_bytes: int,
    ) -> None:
        self._cluster, self._topic, self._topic_id = cluster, topic, topic_id
        self._writer = writer
        self._allow_gaps = allow_gaps
        self._piece_bytes = piece_bytes
        self._ranges: dict[int, tuple[int, int]] = {}
        self._pieces: list[Piece] = []
        self._kept_bytes = 0
        self._losses: list[str] = []
        self.total = 0
        self.records: dict[int, int] = {}
        key, value, *others = record_schema(headers=True)
        self._schema = pa.schema([key, value, pa.field("partition", pa.int32()), *others])

    def plan(self, partition_count: int, until_ms: int | None) -> None:
        every = [TopicPartition(self._topic, partition) for partition in range(partition_count)]
        # The ends first: otherwise a log start that advances in between could be after them.
        archived = self._writer.state.partitions
        at_least = {one: archived[one[1]].end if one[1] in archived else 0 for one in every}
        ends: dict[TopicPartition, int | None] = {**list_ends(self._cluster, at_least, committed=True)}
        if until_ms is not None:
            found = list_offsets(self._cluster, dict.fromkeys(every, until_ms), committed=True)
            ends = {one: ends[one] if offset is None else min(offset, ends[one] or 0) for one, offset in found.items()}
        log_starts = list_offsets(self._cluster, dict.fromkeys(every, EARLIEST), committed=True)
        is_first = not self._writer.state.partitions
        for one in every:
            log_start = log_starts[one] or 0
            end = max(ends[one] or 0, log_start)
            part = self._writer.state.partitions.get(one[1])
            if part is None:
                start = log_start if is_first else 0
                # Recorded also without records: otherwise records that are written and deleted before the next run
                # would be missed silently.
                self._keep_nothing(one[1], start)
            else:
                start = part.end
            if until_ms is None and start > end and part is not None:
                raise ArchiveError(
                    f"partition {one} ends at {end} and is archived up to {start}: its log was truncated, and "
                    "other records may have got the same offsets. Archive it to another folder"
                )
            if start < log_start and self._lost(one[1], start, log_start):
                continue
            self._ranges[one[1]] = max(start, log_start), max(start, end)
        self.total = sum(end - start for start, end in self._ranges.values())
        self._commit()

    def go(self) -> Iterator[int]:
        """Yields the number of offsets passed, now and then."""
        for partition, (start, end) in self._ranges.items():
            while start < end:
                try:
                    yield from self._read(partition, start, end)
                    break
                except OffsetOutOfRange as error:
                    if self._lost(partition, error.wanted, error.log_start):
                        break
                    yield min(error.log_start, end) - error.wanted
                    start = error.log_start
        self._commit()
        if self._losses:
            raise ArchiveError(
                f"{'; '.join(self._losses)}: the log deleted them before they were archived. With --allow-gaps the "
                "archive records the gap and continues"
            )

    def _lost(self, partition: int, start: int, end: int) -> bool:
        """Returns whether to skip the partition; the error is raised after the others are archived."""
        if self._allow_gaps:
            self._keep_nothing(partition, end)
        else:
            self._losses.append(f"offsets {start} to {end - 1} of partition {self._topic}-{partition} are lost")
        return not self._allow_gaps

    def _read(self, partition: int, start: int, end: int) -> Iterator[int]:
        kept: list[pa.RecordBatch] = []
        reader = PartitionReader(
            self._cluster, self._topic, self._topic_id, partition, start=start, end=end, committed=True, headers=True
        )
        reached = start
        try:
            for batch in reader:
                kept.append(batch)
                self._kept_bytes += batch.nbytes
                last = batch.column("offset")[-1].as_py()
                yield last + 1 - reached
                reached = last + 1
                if self._kept_bytes >= self._piece_bytes:
                    self._keep(partition, start, reached, kept)
                    self._commit()
                    start, kept = reached, []
            yield end - reached
            reached = end
        finally:
            # Also when the log has deleted records meanwhile: what was read before is kept.
            self._keep(partition, start, reached, kept)

    def _keep(self, partition: int, start: int, end: int, batches: list[pa.RecordBatch]) -> None:
        if start == end:
            return
        columns = record_schema(headers=True)
        rows = pa.Table.from_batches(batches, columns).combine_chunks()
        numbers = pa.repeat(pa.scalar(partition, pa.int32()), rows.num_rows)
        rows = rows.add_column(2, "partition", numbers).cast(self._schema)
        self._pieces.append(Piece(partition, start, end, rows))
        self.records[partition] = self.records.get(partition, 0) + rows.num_rows

    def _keep_nothing(self, partition: int, at: int) -> None:
        """Extends the archive of the partition to this offset, with a gap if it ends before."""
        self._pieces.append(Piece(partition, at, at, self._schema.empty_table()))

    def _commit(self) -> None:
        if self._pieces:
            self._writer.commit(self._pieces)
        self._pieces, self._kept_bytes = [], 0
