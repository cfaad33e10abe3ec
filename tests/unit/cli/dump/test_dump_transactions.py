"""``skep dump`` over what transactions leave in a partition: markers, the index of aborted ones, snapshots."""

import struct
from pathlib import Path
from uuid import UUID

import pytest

from skep.base.config.topic_config import TopicConfig
from skep.base.files.os_files import OsFiles
from skep.base.ids import LeaderEpoch, Offset, TopicPartition
from skep.cli.failures import CommandError
from skep.records.batch import read_header
from skep.records.builder import NewRecord, build_batch
from skep.storage.log.log import Log
from skep.storage.log.recovery import LogOnDisk, load_log
from tests.unit.cli.dump.test_dump_command import dump, objects

NOW_MS = 1_700_000_000_000


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """[0,1] of producer 1, abort at 2, [3] of producer 2, commit at 4, [5] of producer 1 whose transaction is open."""
    path = tmp_path / "orders-0"
    name, files = TopicPartition("orders", 0), OsFiles()
    content = load_log(LogOnDisk(files, str(path), name, None, Offset(0)), 4096, NOW_MS)
    log = Log(files, str(path), name, UUID(int=1), TopicConfig(), content)
    write(log, 1, 0, 2)
    log.append_marker(1, 0, 7, False, LeaderEpoch(0), NOW_MS)
    write(log, 2, 0, 1)
    log.append_marker(2, 0, 7, True, LeaderEpoch(0), NOW_MS)
    write(log, 1, 2, 1)
    log.close()
    return path


def write(log: Log, producer: int, sequence: int, count: int) -> None:
    batch = build_batch(
        [NewRecord(None, b"v", NOW_MS)] * count,
        producer_id=producer,
        producer_epoch=0,
        base_sequence=sequence,
        is_transactional=True,
    )
    log.append(batch, read_header(batch), LeaderEpoch(0), NOW_MS)


def test_markers_say_what_they_do(directory: Path) -> None:
    log = directory / f"{0:020}.log"
    flags = [found["flags"] for found in objects(dump(log, "--json"))]
    data = ["transactional"]
    assert flags == [data, [*data, "control", "abort"], data, [*data, "control", "commit"], data]
    assert "ok transactional control abort" in dump(log).stdout


def test_aborted_transactions_are_shown(directory: Path) -> None:
    index = directory / f"{0:020}.txnindex"
    [found] = objects(dump(index, "--json"))
    expected = {"producer_id": 1, "first_offset": 0, "last_offset": 2, "last_stable_offset": 3}
    assert found == {"type": "aborted_transaction", "file": str(index), **expected}
    assert dump(index).stdout.splitlines()[2].split() == ["1", "0", "2", "3"]


def test_a_snapshot_shows_where_open_transactions_begin(directory: Path) -> None:
    snapshot = directory / f"{6:020}.snapshot"
    rows = {row["producer_id"]: row for row in objects(dump(snapshot, "--json"))}
    found = {(row["transaction_first_offset"], row["coordinator_epoch"]) for row in rows.values()}
    assert found == {(-1, 7), (5, 7)}
    shown = [line.split()[:7] for line in dump(snapshot).stdout.splitlines()]
    assert ["1", "0", "2", "5", "1", "7", "5"] in shown


def test_a_directory_with_transactions_has_no_damages(directory: Path) -> None:
    assert dump(directory, "--json").exit_code == 0


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        ((0, 1, 3, 4, 5), "no abort marker of producer 1 at offset 4"),
        ((0, 2, 0, 2, 3), "no abort marker of producer 2 at offset 2"),
        ((0, 2, 3, 4, 5), "no abort marker of producer 2 at offset 4"),
        ((1, 1, 0, 2, 3), "entry has version 1, not 0"),
        ((0, 1, 2, 2, 3), "first offset 2 is not before last offset 2"),
    ],
    ids=["data", "another producer", "a commit", "version", "order"],
)
def test_an_entry_without_its_abort_marker_is_a_damage(directory: Path, entry, problem: str) -> None:
    index = directory / f"{0:020}.txnindex"
    index.write_bytes(struct.pack(">hqqqq", *entry))
    for path in (index, directory):
        result = dump(path, "--json")
        assert isinstance(result.exception, CommandError)
        assert problem in [found.get("problem") for found in objects(result)]


def test_a_damaged_snapshot_is_noticed(directory: Path) -> None:
    snapshot = directory / f"{6:020}.snapshot"
    data = bytearray(snapshot.read_bytes())
    data[-1] ^= 1
    snapshot.write_bytes(data)
    assert isinstance(dump(snapshot).exception, CommandError)
    snapshot.write_bytes(data[:5])
    assert isinstance(dump(snapshot).exception, CommandError)
