"""Writes archived records back to a topic, once, in the order of their partitions.

Records are written in transactions of some megabytes. The same transaction has the progress of the replay, as offsets
of a group. After a kill the next replay continues there: it has the same transactional id, so it aborts the open
transaction. Readers of committed records see each record once, while the replay runs.

Partitions take turns by the days of their records, so that the days are replayed roughly one after the other.
"""

import heapq
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from skep.base.errors import KafkaError
from skep.client.admin import topic_configs
from skep.client.archive.archive_folder import Archive, ArchiveError, is_after
from skep.client.archive.archive_reader import Group, in_groups, read_files
from skep.client.archive.replay_progress import ReplayProgress
from skep.client.cluster_client import ClusterClient
from skep.client.errors import ClientError
from skep.client.produce.partitioner import Partitioner, rows_by_number
from skep.client.produce.producer import Producer
from skep.client.produce.transactions import FENCED
from skep.client.topic_info import describe_topics
from skep.records.columnar import RecordColumns, RecordTooLarge
from skep.records.compression import Codec

TRANSACTION_BYTES = 16 << 20
TRANSACTION_SECONDS = 10.0
"""Well below the transaction timeout: most of the rows that are read may be outside the selection."""
LATEST_OFFSET = (1 << 63) - 1

Progress = Callable[[int, int], None]
"""Called with the number of offsets done, and of all."""


class Selection(NamedTuple):
    """The archived records to replay; ends are exclusive, times are the records' timestamps."""

    partitions: Collection[int] | None = None
    from_offset: int = 0
    until_offset: int = LATEST_OFFSET
    from_ms: int | None = None
    until_ms: int | None = None


EVERYTHING = Selection()


class ReplayResult(NamedTuple):
    records: int
    """Written by this run."""
    transactions: int
    resumed: dict[int, int]
    """The offset that earlier runs had reached, by archived partition."""
    replayed: dict[int, int]
    """Number of records by archived partition."""


class _Work(NamedTuple):
    partition: int
    files: Group
    start: int
    end: int


def replay(
    cluster: ClusterClient,
    archive: Archive,
    target: str,
    *,
    name: str,
    selection: Selection = EVERYTHING,
    repartition: bool = False,
    allow_gaps: bool = False,
    transaction_bytes: int = TRANSACTION_BYTES,
    transaction_seconds: float = TRANSACTION_SECONDS,
    progress: Progress = lambda done, total: None,
) -> ReplayResult:
    """Writes the records of the selection that no earlier run of this ``name`` has written, each to its old partition.

    With ``repartition``, to the partition of its key in the target. ``name`` is the transactional id and the group.
    Raises ArchiveError when the target cannot take the records unchanged, when the name is in use for something else,
    and, unless ``allow_gaps``, when files of the archive are missing.
    """
    _, target_id, count = describe_topics(cluster, [target])[target]
    configs = topic_configs(cluster, target)
    chosen = _chosen(archive, selection)
    _check_target(target, count, chosen, configs, repartition)
    with Producer(cluster, transactional_id=name, codec=Codec.named("lz4")) as producer:
        producer.set_limit(target, int(configs.get("max.message.bytes") or 0) or 1_000_000)
        try:
            # Aborts what an earlier run left open; only then its progress is certain.
            producer.begin()
            identity = [str(archive.topic_id), str(target_id), *_as_asked(selection), repartition]
            store = ReplayProgress(cluster, name, target, count, identity)
            resumed = store.read(chosen)
            if not allow_gaps:
                _check_files(archive, chosen, selection, resumed)
            work = list(_in_turns(archive, chosen, selection, resumed))
            run = _Run(producer, store, resumed, Partitioner(target, count) if repartition else None)
            total = sum(one.end - one.start for one in work)
            done = 0
            for one in work:
                for offsets in run.send(one, selection):
                    done += offsets
                    if run.bytes >= transaction_bytes or run.seconds >= transaction_seconds:
                        run.commit()
                    progress(done, total)
            run.commit(is_last=True)
        except BaseException as error:
            if isinstance(error, KafkaError) and error.code in FENCED:
                raise ArchiveError(
                    f"the replay '{name}' timed out, or another replay with this name fenced it; run it again, it "
                    "continues where it was"
                ) from None
            _abort(producer, error)
            raise
    return ReplayResult(run.records, run.transactions, resumed, run.replayed)


def _abort(producer: Producer, error: BaseException) -> None:
    """Aborts, so that readers need not wait for the timeout; the next run would do it too."""
    try:
        producer.abort()
    except (KafkaError, ClientError) as second:
        error.add_note(f"the transaction could not be aborted and ends by its timeout: {second}")


def _chosen(archive: Archive, selection: Selection) -> list[int]:
    if selection.partitions is None:
        return sorted(archive.partitions)
    for one in selection.partitions:
        if one not in archive.partitions:
            raise ArchiveError(
                f"{archive.folder} has no partition {one}, only {', '.join(map(str, archive.partitions))}"
            )
    return sorted(set(selection.partitions))


def _check_target(
    target: str, count: int, chosen: list[int], configs: Mapping[str, str | None], repartition: bool
) -> None:
    if not repartition and chosen and chosen[-1] >= count:
        raise ArchiveError(
            f"topic '{target}' has {count} partitions and the archive has records of partition {chosen[-1]}: add "
            "partitions, or let keys decide with --repartition"
        )
    if configs.get("message.timestamp.type") == "LogAppendTime":
        raise ArchiveError(
            f"topic '{target}' has message.timestamp.type=LogAppendTime: every record would get the time of the "
            "replay. Set it to CreateTime"
        )


def _check_files(
    archive: Archive, partitions: Collection[int], selection: Selection, resumed: Mapping[int, int]
) -> None:
    for one in partitions:
        start = max(selection.from_offset, resumed.get(one, 0))
        # ``until_ms`` is exclusive, and a day begins with its first millisecond.
        last_ms = None if selection.until_ms is None else selection.until_ms - 1
        lost = archive.lost(one, start, selection.until_offset, selection.from_ms, last_ms)
        if lost:
            raise ArchiveError(f"{lost[0]}: put them back, or replay without them with --allow-gaps")


def _in_turns(
    archive: Archive, partitions: Collection[int], selection: Selection, resumed: Mapping[int, int]
) -> Iterator[_Work]:
    """Yields the files in the order of each partition, and over all partitions by day as far as that allows."""
    left: dict[int, Iterator[_Work]] = {}
    for partition in partitions:
        part = archive.partitions[partition]
        start = max(part.start, selection.from_offset, resumed.get(partition, 0))
        end = min(part.end, selection.until_offset)
        groups = in_groups(archive.files(partition, start, end, selection.from_ms))
        left[partition] = iter(
            [
                _Work(partition, group, max(start, group[0].first), min(end, max(one.last for one in group) + 1))
                for group in groups
                if not all(is_after(one.date, selection.until_ms) for one in group)
            ]
        )
    turns = [(min(file.date for file in one.files), one) for it in left.values() if (one := next(it, None))]
    heapq.heapify(turns)
    while turns:
        _, work = heapq.heappop(turns)
        yield work
        if (following := next(left[work.partition], None)) is not None:
            heapq.heappush(turns, (min(file.date for file in following.files), following))


class _Run:
    """Owns the open transaction, if there is one. ``_positions`` is the progress after its commit."""

    def __init__(
        self, producer: Producer, progress: ReplayProgress, resumed: Mapping[int, int], partitioner: Partitioner | None
    ) -> None:
        self._producer, self._progress, self._partitioner = producer, progress, partitioner
        self._target = progress.target
        self._positions = dict(resumed)
        self._touched: set[int] = set()
        self._begun = time.monotonic()
        self.bytes = 0
        self.records = 0
        self.transactions = 0
        self.replayed: dict[int, int] = {}

    @property
    def seconds(self) -> float:
        """The longest time for which the transaction can have been open."""
        return time.monotonic() - self._begun

    def send(self, work: _Work, selection: Selection) -> Iterator[int]:
        """Yields the number of offsets passed, at points where the transaction may be committed."""
        reached = work.start
        for whole in read_files(work.files, work.start, work.end, headers=True):
            last = whole.column("offset")[-1].as_py()
            batch = _of_times(whole, selection)
            if batch.num_rows:
                self._send(work.partition, batch)
                self.bytes += batch.nbytes
                self.records += batch.num_rows
                self.replayed[work.partition] = self.replayed.get(work.partition, 0) + batch.num_rows
            # Also past rows outside the selection, so that no later run has to read them again.
            self._positions[work.partition] = last + 1
            self._touched.add(work.partition)
            yield last + 1 - reached
            reached = last + 1

    def _send(self, partition: int, batch: pa.RecordBatch) -> None:
        columns = RecordColumns(
            key=batch.column("key"),
            value=batch.column("value"),
            headers=batch.column("headers"),
            timestamp_ms=batch.column("timestamp"),
        )
        try:
            if self._partitioner is None:
                self._producer.send(self._target, partition, columns)
                return
            chosen = self._partitioner.choose(columns.key, None, batch.num_rows, batch.nbytes / batch.num_rows)
            for number, rows in rows_by_number(chosen):
                self._producer.send(self._target, number, columns, rows)
        except RecordTooLarge as error:
            offset = batch.column("offset")[error.row].as_py()
            raise ArchiveError(
                f"the record at offset {offset} of archived partition {partition} has {error.size} bytes, and "
                f"max.message.bytes of topic '{self._target}' is {error.limit}"
            ) from None

    def commit(self, *, is_last: bool = False) -> None:
        """Commits the records and the progress together. After the last transaction, readers see all records when this
        returns."""
        if self._touched:
            self._producer.flush()
            self._progress.commit(self._producer.identity, self._positions, self._touched)
            if self._producer.written:
                self._producer.commit(until_visible=is_last)
            else:
                self._progress.end(self._producer.identity, until_visible=is_last)
            self._producer.begin()
            self.transactions += 1
        self._touched, self.bytes, self._begun = set(), 0, time.monotonic()


def _as_asked(selection: Selection) -> Selection:
    """Returns an equal selection for the same partitions in any order."""
    return (
        selection if selection.partitions is None else selection._replace(partitions=sorted(set(selection.partitions)))
    )


def _of_times(batch: pa.RecordBatch, selection: Selection) -> pa.RecordBatch:
    if selection.from_ms is None and selection.until_ms is None:
        return batch
    times = batch.column("timestamp").cast(pa.int64()).to_numpy()
    wanted = np.ones(len(times), bool)
    if selection.from_ms is not None:
        wanted &= times >= selection.from_ms * 1000
    if selection.until_ms is not None:
        wanted &= times < selection.until_ms * 1000
    return batch if wanted.all() else batch.filter(pa.array(wanted))
