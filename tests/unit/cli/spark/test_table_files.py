"""The rows of a pipeline's tables, counted and read in their Parquet files as Spark lists them."""

import json
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from skep.cli.spark.table_files import files_of_table, read_rows, rows_of_batch, rows_of_table


def _file(folder: Path, name: str, rows: int) -> Path:
    path = folder / f"part-{name}.snappy.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    pyarrow.parquet.write_table(pyarrow.table({"name": [name] * rows, "number": range(rows)}), path)
    return path


def _listed(folder: Path, batch: str, *files: Path) -> None:
    log = folder / "_spark_metadata"
    log.mkdir(exist_ok=True)
    entries = [{"path": f"file://{path}", "size": 1, "isDir": False, "action": "add"} for path in files]
    (log / batch).write_text("\n".join(["v1", *map(json.dumps, entries)]))


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Eleven batches of two rows, of which the tenth repeats all before it; and a file of a failed attempt."""
    folder = tmp_path / "orders"
    files = [_file(folder, str(number), 2) for number in range(11)]
    for number in (*range(9), 10):
        _listed(folder, str(number), files[number])
    _listed(folder, "9.compact", *files[:10])
    _file(folder, "failed", 50)
    return folder


def test_a_batch_has_the_rows_of_the_files_that_it_added(table: Path) -> None:
    assert [rows_of_batch(table, number) for number in range(11)] == [2] * 11


def test_a_batch_without_files_has_no_rows(table: Path) -> None:
    _listed(table, "11")
    assert rows_of_batch(table, 11) == 0


def test_a_table_has_the_rows_of_its_batches_and_not_those_of_failed_attempts(table: Path) -> None:
    assert rows_of_table(table) == 22


def test_a_materialized_view_has_the_rows_of_all_its_files(tmp_path: Path) -> None:
    _file(tmp_path / "product=eggs", "0", 3)
    _file(tmp_path, "1", 4)
    (tmp_path / "_SUCCESS").touch()
    (tmp_path / ".part-1.crc").write_text("x")
    assert rows_of_table(tmp_path) == 7


def test_what_cannot_be_read_is_not_counted(table: Path, tmp_path: Path) -> None:
    assert rows_of_batch(table, 99) is None
    assert rows_of_batch(tmp_path / "none", 0) is None
    assert rows_of_table(tmp_path / "none") is None
    (table / "_spark_metadata" / "12").write_text("v2\n{}")
    assert rows_of_batch(table, 12) is None
    (tmp_path / "csv").mkdir()
    (tmp_path / "csv" / "part-0.csv").write_text("a,b\n")
    assert rows_of_table(tmp_path / "csv") is None


def test_rows_are_read_up_to_a_limit(table: Path) -> None:
    files = files_of_table(table)
    rows = read_rows(files, 5)
    assert rows is not None
    assert rows["name"].to_pylist() == ["0", "0", "1", "1", "2"]
    assert read_rows([], 5) is None
