"""The output of ``skep dump``: text columns for people, one JSON object per line for scripts.

Both print row by row, because a segment of 1 GiB may hold millions of batches.
"""

import json
from pathlib import Path
from typing import Any, Protocol

from skep.base.errors import KafkaError
from skep.cli import output
from skep.cli.dump.file_inspection import Damage, IndexEntry, InspectedBatch
from skep.cli.dump.transaction_inspection import AbortedEntry, ProducerRow
from skep.cli.moments import shown_moment
from skep.records.batch import BatchHeader
from skep.records.compression import Codec
from skep.records.end_txn_marker import read_marker
from skep.records.record import Record, iterate_records


class SegmentSummary:
    """The totals of a segment, counted while it is read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.bytes = path.stat().st_size
        self.batches = self.records = 0
        self.first_offset = self.last_offset = int(path.stem) - 1
        self.min_timestamp = self.max_timestamp = -1

    def add(self, batch: InspectedBatch) -> None:
        header = batch.header
        if not self.batches:
            self.first_offset, self.min_timestamp = header.base_offset, header.base_timestamp
        self.batches += 1
        self.records += header.records_count
        self.last_offset = header.last_offset
        self.max_timestamp = max(self.max_timestamp, header.max_timestamp)


class Report(Protocol):
    def begin_batches(self, path: Path) -> None: ...

    def begin_segments(self, directory: Path) -> None: ...

    def segment(self, summary: SegmentSummary) -> None: ...

    def batch(self, path: Path, batch: InspectedBatch) -> None: ...

    def records(self, path: Path, batch: InspectedBatch) -> list[Damage]:
        """Prints the records and returns the damage found in them."""
        ...

    def entries(self, path: Path, entries: list[IndexEntry]) -> None: ...

    def aborted(self, path: Path, entries: list[AbortedEntry]) -> None: ...

    def producers(self, path: Path, rows: list[ProducerRow]) -> None: ...

    def epochs(self, path: Path, entries: list[tuple[int, int]]) -> None: ...

    def damage(self, damage: Damage) -> None: ...


_BATCH_ROW = "{:>20} {:>8} {:>11} {:>9}  {:7} {:23} {:>5} {:>9}  {}"
_ABORTED_ROW = "{:>20} {:>20} {:>20} {:>20}"
_PRODUCER_ROW = "{:>12} {:>6} {:>11} {:>20} {:>8} {:>12} {:>20}  {}"
_SEGMENT_ROW = "{:26} {:>11} {:>8} {:>9} {:>12} {:>12}  {:23} {:23}"


class TextReport:
    def begin_batches(self, path: Path) -> None:
        output.line(str(path))
        output.line(
            _BATCH_ROW.format(
                "offsets", "records", "position", "bytes", "codec", "latest time", "epoch", "producer", "state"
            )
        )

    def begin_segments(self, directory: Path) -> None:
        output.line(str(directory))
        output.line(
            _SEGMENT_ROW.format(
                "segment", "bytes", "batches", "records", "first", "last", "from time", "to time"
            ).rstrip()
        )

    def segment(self, summary: SegmentSummary) -> None:
        filled = summary.batches > 0
        output.line(
            _SEGMENT_ROW.format(
                summary.path.name,
                summary.bytes,
                summary.batches,
                summary.records,
                summary.first_offset if filled else "-",
                summary.last_offset if filled else "-",
                shown_moment(summary.min_timestamp),
                shown_moment(summary.max_timestamp),
            ).rstrip()
        )

    def batch(self, path: Path, batch: InspectedBatch) -> None:
        header = batch.header
        output.line(
            _BATCH_ROW.format(
                f"{header.base_offset}-{header.last_offset}",
                header.records_count,
                batch.position,
                header.size,
                _codec_name(header),
                shown_moment(header.max_timestamp),
                header.partition_leader_epoch,
                f"{header.producer_id}/{header.base_sequence}" if header.has_producer_id else "-",
                " ".join(["ok" if batch.problem is None else "DAMAGED", *_flags(batch)]),
            )
        )

    def records(self, path: Path, batch: InspectedBatch) -> list[Damage]:
        def show(record: Record) -> None:
            headers = "".join(f" {name}={_quoted(value)}" for name, value in record.headers)
            moment = shown_moment(record.timestamp)
            output.line(f"{record.offset:>20} {moment}  {_quoted(record.key)}: {_quoted(record.value)}{headers}")

        return _each_record(path, batch, show)

    def entries(self, path: Path, entries: list[IndexEntry]) -> None:
        output.line(f"{path}  {len(entries)} entries")
        timed = path.suffix == ".timeindex"
        output.line(f"{'offset':>20}  {'largest time so far' if timed else 'position'}")
        for entry in entries:
            output.line(f"{entry.offset:>20}  {shown_moment(entry.value) if timed else entry.value}")

    def aborted(self, path: Path, entries: list[AbortedEntry]) -> None:
        output.line(f"{path}  {len(entries)} aborted transactions")
        output.line(_ABORTED_ROW.format("producer", "first offset", "marker at", "last stable offset"))
        for entry in entries:
            output.line(_ABORTED_ROW.format(*entry[1:]))

    def producers(self, path: Path, rows: list[ProducerRow]) -> None:
        output.line(str(path))
        names = ("producer", "epoch", "sequence", "last offset", "records", "coordinator", "transaction from", "time")
        output.line(_PRODUCER_ROW.format(*names))
        for row in rows:
            has_batch = row.last_offset >= 0
            output.line(
                _PRODUCER_ROW.format(
                    row.producer_id,
                    row.epoch,
                    row.last_sequence if row.last_sequence >= 0 else "-",
                    row.last_offset if has_batch else "-",
                    row.offset_delta + 1 if has_batch else 0,
                    row.coordinator_epoch if row.coordinator_epoch >= 0 else "-",
                    row.transaction_first_offset if row.transaction_first_offset >= 0 else "-",
                    shown_moment(row.timestamp),
                )
            )

    def epochs(self, path: Path, entries: list[tuple[int, int]]) -> None:
        output.line(str(path))
        for epoch, start in entries:
            output.line(f"  leader epoch {epoch} from offset {start}")

    def damage(self, damage: Damage) -> None:
        output.alarm(f"DAMAGE {damage}")


class JsonReport:
    def begin_batches(self, path: Path) -> None:
        pass

    def begin_segments(self, directory: Path) -> None:
        pass

    def segment(self, summary: SegmentSummary) -> None:
        fields = {name: value for name, value in vars(summary).items() if name != "path"}
        self._object("segment", summary.path, **fields)

    def batch(self, path: Path, batch: InspectedBatch) -> None:
        header = batch.header._asdict()
        fields = {name: value for name, value in header.items() if name not in ("batch_length", "crc")}
        self._object(
            "batch",
            path,
            position=batch.position,
            bytes=batch.header.size,
            last_offset=batch.header.last_offset,
            codec=_codec_name(batch.header),
            flags=_flags(batch),
            crc=f"{batch.header.crc:08x}",
            problem=batch.problem,
            **fields,
        )

    def records(self, path: Path, batch: InspectedBatch) -> list[Damage]:
        def show(record: Record) -> None:
            self._object(
                "record",
                path,
                offset=record.offset,
                timestamp=record.timestamp,
                key=output.readable(record.key),
                value=output.readable(record.value),
                headers=[{"key": name, "value": output.readable(value)} for name, value in record.headers],
            )

        return _each_record(path, batch, show)

    def entries(self, path: Path, entries: list[IndexEntry]) -> None:
        value_name = "timestamp" if path.suffix == ".timeindex" else "position"
        for entry in entries:
            self._object("index_entry", path, offset=entry.offset, **{value_name: entry.value})

    def aborted(self, path: Path, entries: list[AbortedEntry]) -> None:
        for entry in entries:
            fields = {name: value for name, value in entry._asdict().items() if name != "at"}
            self._object("aborted_transaction", path, **fields)

    def producers(self, path: Path, rows: list[ProducerRow]) -> None:
        for row in rows:
            self._object("producer", path, **row._asdict())

    def epochs(self, path: Path, entries: list[tuple[int, int]]) -> None:
        for epoch, start in entries:
            self._object("leader_epoch", path, epoch=epoch, start_offset=start)

    def damage(self, damage: Damage) -> None:
        self._object("damage", damage.file, position=damage.position, problem=damage.problem)

    def _object(self, kind: str, path: Path, **fields: Any) -> None:
        output.write(output.json_bytes({"type": kind, "file": str(path), **fields}))


def _each_record(path: Path, batch: InspectedBatch, show: Any) -> list[Damage]:
    try:
        for record in iterate_records(batch.data):
            show(record)
    except KafkaError as error:
        return [Damage(path, batch.position, f"cannot read the records: {error}")]
    return []


def _codec_name(header: BatchHeader) -> str:
    return Codec(header.codec).label if header.codec in Codec._value2member_map_ else f"codec {header.codec}"


def _flags(batch: InspectedBatch) -> list[str]:
    """Returns the attributes of a batch; a transaction marker has ``commit`` or ``abort``, too."""
    header = batch.header
    marker = read_marker(batch.data) if header.is_control and batch.problem is None else None
    flags = {
        "append-time": header.is_append_time,
        "transactional": header.is_transactional,
        "control": header.is_control,
        "commit": marker is not None and marker.committed,
        "abort": marker is not None and not marker.committed,
    }
    return [name for name, is_set in flags.items() if is_set]


def _quoted(field: bytes | None) -> str:
    """Returns the field as JSON, so that control characters in a record do not reach the terminal."""
    return json.dumps(output.readable(field), ensure_ascii=False)
