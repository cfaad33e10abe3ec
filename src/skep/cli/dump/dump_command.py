"""``skep dump``: print the files of a partition and check them for damage."""

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Protocol

import typer

from skep.cli import output
from skep.cli.dump import file_inspection
from skep.cli.dump.dump_report import JsonReport, Report, SegmentSummary, TextReport
from skep.cli.dump.file_inspection import CHECKPOINT, Damage, InspectedBatch
from skep.cli.dump.transaction_inspection import AbortedCheck, read_aborted, read_snapshot
from skep.cli.failures import CommandError, UsageError

ABORTED_SUFFIX = ".txnindex"
INDEX_SUFFIXES = (".index", ".timeindex", ABORTED_SUFFIX)


def register(app: typer.Typer) -> None:
    app.command("dump")(dump)


def dump(
    paths: Annotated[list[Path], typer.Argument(metavar="PATH", help="Files of a partition, or its directory.")],
    records: Annotated[bool, typer.Option("--records", "-r", help="Print the records of each batch, too.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object per line, for scripts.")] = False,
) -> None:
    """Print files of a partition and check them: .log, .index, .timeindex, .txnindex, .snapshot or
    leader-epoch-checkpoint. A directory is summarized by segment.

    The CRC32C of every batch is checked, and every index entry is compared with the log. Damage is reported with file
    and position, and the exit code is 1. The format is Kafka's, so Kafka's files can be checked, too. In the directory
    of a running broker, a batch that is being written looks incomplete.

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
            raise CommandError(f"there is no file or directory {path}") from None
        except OSError as error:
            raise CommandError(f"cannot read {path}: {error.strerror}") from None
        except ValueError as error:
            raise UsageError(str(error)) from None
    if inspector.damage_count:
        output.flush()
        raise CommandError(f"found {output.count(inspector.damage_count, 'damaged place')}")


class IndexCheck(Protocol):
    """Compares an index with the batches of its log."""

    def saw(self, batch: InspectedBatch) -> None: ...

    def damages(self, *, whole_log: bool) -> list[Damage]: ...


class Inspector:
    """Reads and reports files; ``damage_count`` is the number of damaged places found so far."""

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
        elif not path.exists():
            raise UsageError(f"there is no file or directory {path}")
        else:
            kinds = f".log, .index, .timeindex, .txnindex, .snapshot, {CHECKPOINT}"
            raise UsageError(f"{path} is not a file of a partition ({kinds}) or its directory")

    def _directory(self, directory: Path) -> None:
        logs = sorted(directory.glob("*.log"))
        if not logs:
            raise UsageError(f"{directory} has no segments; expected the directory of a partition, like orders-0")
        self._report.begin_segments(directory)
        next_offset = None
        for log in logs:
            checks: list[IndexCheck] = []
            for suffix in INDEX_SUFFIXES:
                if (index := log.with_suffix(suffix)).exists():
                    checks.append(self._check(index, shown=False))
            summary = self._log(log, shown=self._records, checks=checks)
            self._report.segment(summary)
            if next_offset is not None and file_inspection.base_offset_of(log) < next_offset:
                self._damaged(
                    [Damage(log, 0, f"overlaps the previous segment, whose last offset is {next_offset - 1}")]
                )
            next_offset = summary.last_offset + 1
        if (checkpoint := directory / CHECKPOINT).exists():
            self._checkpoint(checkpoint)

    def _log(self, path: Path, *, shown: bool, checks: Iterable[IndexCheck] = ()) -> SegmentSummary:
        summary = SegmentSummary(path)
        whole = True
        for found in file_inspection.read_log(path):
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
            output.note(f"There is no {log.name} beside it, so the entries are not compared with the log.")

    def _check(self, path: Path, *, shown: bool) -> IndexCheck:
        """Reads an index, reports damage of its format, and returns the check that compares it with its log."""
        if path.suffix == ABORTED_SUFFIX:
            aborted, damages = read_aborted(path)
            if shown:
                self._report.aborted(path, aborted)
            self._damaged(damages)
            return AbortedCheck(path, aborted)
        entries, damages = file_inspection.read_entries(path)
        if shown:
            self._report.entries(path, entries)
        self._damaged(damages)
        if path.suffix == ".index":
            return file_inspection.OffsetIndexCheck(path, entries)
        return file_inspection.TimeIndexCheck(path, entries)

    def _snapshot(self, path: Path) -> None:
        rows, damages = read_snapshot(path)
        self._report.producers(path, rows)
        self._damaged(damages)

    def _checkpoint(self, path: Path) -> None:
        entries, damages = file_inspection.read_checkpoint(path)
        self._report.epochs(path, entries)
        self._damaged(damages)

    def _damaged(self, damages: Iterable[Damage]) -> None:
        for damage in damages:
            self.damage_count += 1
            self._report.damage(damage)
