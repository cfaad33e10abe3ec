"""``skep dump``: the files of a partition in readable form, and whether they are whole."""

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Protocol

import typer

from skep.cli import output
from skep.cli.dump import file_inspection as inspection
from skep.cli.dump.dump_report import JsonReport, Report, SegmentSummary, TextReport
from skep.cli.dump.file_inspection import CHECKPOINT, Batch, Damage
from skep.cli.dump.transaction_inspection import AbortedCheck, read_aborted, read_snapshot
from skep.cli.failures import CommandError, UsageError

ABORTED_SUFFIX = ".txnindex"
INDEX_SUFFIXES = (".index", ".timeindex", ABORTED_SUFFIX)


def register(app: typer.Typer) -> None:
    app.command("dump")(dump)


def dump(
    paths: Annotated[list[Path], typer.Argument(metavar="PATH...", help="Files, or directories of partitions.")],
    records: Annotated[bool, typer.Option("--records", "-r", help="Show the records of each batch too.")] = False,
    json: Annotated[bool, typer.Option("--json", help="One JSON object a line, for scripts.")] = False,
) -> None:
    """Show a segment (.log), its indexes (.index, .timeindex, .txnindex), a .snapshot, a leader-epoch-checkpoint, or a
    partition's directory.

    The CRC32C of every batch is checked, and every index entry is held against the log that it belongs to. Damages
    are told with file and position; with any, the exit code is 1. Of a directory the segments are summed up. The
    format is Kafka's, so its files can be looked at too. In a running broker's directory a batch that is just being
    written looks torn.

    \b
    Examples:
      skep dump skep-data/orders-0
      skep dump skep-data/orders-0/00000000000000000000.log --records
      skep dump skep-data/orders-0/00000000000000000000.timeindex --json
    """
    report: Report = JsonReport() if json else TextReport()
    inspector = Inspector(report, records)
    for path in paths:
        try:
            inspector.inspect(path)
        except FileNotFoundError:
            raise CommandError(f"there is no {path}") from None
        except OSError as error:
            raise CommandError(f"cannot read {path}: {error.strerror}") from None
        except ValueError as error:
            raise UsageError(str(error)) from None
    if inspector.damage_count:
        output.flush()
        raise CommandError(f"{output.count(inspector.damage_count, 'damage')} found")


class IndexCheck(Protocol):
    """What an index is held against its log by."""

    def saw(self, batch: Batch) -> None: ...

    def damages(self, *, whole_log: bool) -> list[Damage]: ...


class Inspector:
    """Reads what it is given and reports it; ``damage_count`` grows with what it finds wrong."""

    def __init__(self, report: Report, records: bool) -> None:
        self.damage_count = 0
        self._report = report
        self._records = records

    def inspect(self, path: Path) -> None:
        if path.is_dir():
            self._directory(path)
        elif path.name == CHECKPOINT:
            self._checkpoint(path)
        elif path.suffix == ".log":
            self._report.begin_batches(path)
            self._log(path, shown=True)
        elif path.suffix in INDEX_SUFFIXES:
            self._index(path)
        elif path.suffix == ".snapshot":
            self._snapshot(path)
        else:
            kinds = "a .log, .index, .timeindex, .txnindex or .snapshot file"
            raise UsageError(f"{path} is neither {kinds}, nor a partition's directory")

    def _directory(self, directory: Path) -> None:
        logs = sorted(directory.glob("*.log"))
        if not logs:
            raise UsageError(f"{directory} holds no segments; the directory of a partition is called like orders-0")
        self._report.begin_segments(directory)
        next_offset = None
        for log in logs:
            checks: list[IndexCheck] = []
            for suffix in INDEX_SUFFIXES:
                if (index := log.with_suffix(suffix)).exists():
                    checks.append(self._check(index, shown=False))
            summary = self._log(log, shown=self._records, checks=checks)
            self._report.segment(summary)
            if next_offset is not None and inspection.base_offset_of(log) < next_offset:
                self._damaged([Damage(log, 0, f"the segment before it reaches to offset {next_offset - 1}")])
            next_offset = summary.last_offset + 1
        if (checkpoint := directory / CHECKPOINT).exists():
            self._checkpoint(checkpoint)

    def _log(self, path: Path, *, shown: bool, checks: Iterable[IndexCheck] = ()) -> SegmentSummary:
        summary = SegmentSummary(path)
        whole = True
        for found in inspection.read_log(path):
            if isinstance(found, Damage):
                whole = False
                self._damaged([found])
                continue
            summary.add(found)
            for check in checks:
                check.saw(found)
            if shown:
                self._report.batch(path, found)
            if found.problem is not None:
                self._damaged([Damage(path, found.position, found.problem)])
            elif self._records:
                self._damaged(self._report.records(path, found))
        for check in checks:
            self._damaged(check.damages(whole_log=whole))
        return summary

    def _index(self, path: Path) -> None:
        check = self._check(path, shown=True)
        log = path.with_suffix(".log")
        if log.exists():
            shown, self._records = self._records, False
            self._log(log, shown=False, checks=[check])
            self._records = shown
        else:
            output.note(f"{log.name} is not beside it, so the entries are not held against the log.")

    def _check(self, path: Path, *, shown: bool) -> IndexCheck:
        """What the index is held against its log by, after its own form was looked at."""
        if path.suffix == ABORTED_SUFFIX:
            aborted, damages = read_aborted(path)
            if shown:
                self._report.aborted(path, aborted)
            self._damaged(damages)
            return AbortedCheck(path, aborted)
        entries, damages = inspection.read_entries(path)
        if shown:
            self._report.entries(path, entries)
        self._damaged(damages)
        if path.suffix == ".index":
            return inspection.OffsetIndexCheck(path, entries)
        return inspection.TimeIndexCheck(path, entries)

    def _snapshot(self, path: Path) -> None:
        rows, damages = read_snapshot(path)
        self._report.producers(path, rows)
        self._damaged(damages)

    def _checkpoint(self, path: Path) -> None:
        entries, damages = inspection.read_checkpoint(path)
        self._report.epochs(path, entries)
        self._damaged(damages)

    def _damaged(self, damages: Iterable[Damage]) -> None:
        for damage in damages:
            self.damage_count += 1
            self._report.damage(damage)
