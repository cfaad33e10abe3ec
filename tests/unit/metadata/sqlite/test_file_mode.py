"""The file of the metadata store has the keys of passwords: nobody but the broker's user reads it."""

import stat
from pathlib import Path

from skep.metadata.sqlite.sqlite_tables import SqliteTables


def modes(directory: Path) -> dict[str, int]:
    return {path.name: stat.S_IMODE(path.stat().st_mode) for path in directory.iterdir() if path.is_file()}


def test_a_new_file_and_those_beside_it_are_the_owners_alone(tmp_path: Path) -> None:
    tables = SqliteTables(tmp_path / "m.sqlite", busy_timeout_s=1)
    try:
        tables.put("a", b"b", None)
        found = modes(tmp_path)
        assert len(found) > 1
        assert set(found.values()) == {0o600}
    finally:
        tables.close()
