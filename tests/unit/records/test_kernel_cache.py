"""Where compiled kernels are kept, who compiles them, and how it is known that they are there."""

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from skep.records.kernel_cache import compiling, has_compiled, own_directory

WITHOUT_A_PLACE = """
from numba.core import caching
caching.CacheImpl._locator_classes = [caching.UserProvidedCacheLocator]
from skep.records.kernel_compiler import kernel
@kernel()
def twice(number):
    return 2 * number
assert twice(4) == 8
print(twice.stats.cache_path)
"""


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory for temporary files."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path / f"skep-kernels-{os.getuid()}"


@pytest.fixture
def source(tmp_path: Path) -> str:
    """A file of kernels; what is compiled of it is kept in ``cache``."""
    (tmp_path / "cache").mkdir()
    path = tmp_path / "loops.py"
    path.write_text("...")
    return str(path)


def compile_(source: str) -> None:
    with compiling(source) as cache:
        folder = Path(source).parent / "cache"
        (folder / "loops.twice-7.py311.nbi").touch()
        cache.append(str(folder))


def test_kernels_are_kept_below_the_temporary_directory_where_there_is_no_other_place(tmp_path: Path) -> None:
    (tmp_path / "loops.py").write_text(WITHOUT_A_PLACE)
    environment = {name: value for name, value in os.environ.items() if name != "NUMBA_CACHE_DIR"}
    environment |= {"TMPDIR": str(tmp_path), "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    run = subprocess.run(
        [sys.executable, str(tmp_path / "loops.py")],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert Path(run.stdout.strip()).is_relative_to(tmp_path / f"skep-kernels-{os.getuid()}")


def test_a_directory_that_others_could_have_filled_is_not_used(tmp_path: Path, temporary: Path) -> None:
    assert own_directory() == str(temporary)
    assert temporary.stat().st_mode & 0o777 == 0o700
    assert own_directory() == str(temporary)
    temporary.chmod(0o777)
    assert own_directory() != str(temporary)
    temporary.rmdir()
    (tmp_path / "elsewhere").mkdir()
    temporary.symlink_to(tmp_path / "elsewhere")
    assert own_directory() != str(temporary)


@pytest.mark.usefixtures("temporary")
def test_what_was_compiled_is_found_until_its_source_changes(source: str) -> None:
    assert not has_compiled(source)
    compile_(source)
    assert has_compiled(source)
    Path(source).write_text("another loop")
    assert not has_compiled(source)


@pytest.mark.usefixtures("temporary")
def test_what_was_compiled_and_then_deleted_is_not_found(source: str) -> None:
    compile_(source)
    for index in (Path(source).parent / "cache").iterdir():
        index.unlink()
    assert not has_compiled(source)


@pytest.mark.usefixtures("temporary")
def test_a_compiler_that_fails_leaves_nothing_to_be_found(source: str) -> None:
    with pytest.raises(RuntimeError, match="out of memory"), compiling(source):
        raise RuntimeError("out of memory")
    assert not has_compiled(source)


def test_one_process_compiles_at_a_time_and_afterwards_nobody_waits(source: str, temporary: Path) -> None:
    with compiling(source) as cache:
        (lock,) = temporary.glob("*.lock")
        with lock.open() as another, pytest.raises(BlockingIOError):
            fcntl.flock(another, fcntl.LOCK_EX | fcntl.LOCK_NB)
        cache.append(str(Path(source).parent / "cache"))
        (Path(source).parent / "cache" / "loops.twice-7.py311.nbi").touch()
    with lock.open() as another:
        fcntl.flock(another, fcntl.LOCK_EX)
        compile_(source)


def test_nobody_waits_for_ever_for_a_process_that_hangs(
    source: str, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("skep.records.kernel_cache.LONGEST_WAIT_S", 0.1)
    with compiling(source):
        compile_(source)
        assert has_compiled(source)


def test_a_temporary_directory_of_somebody_else_is_no_place_for_the_marker(source: str, temporary: Path) -> None:
    temporary.mkdir()
    temporary.chmod(0o777)
    compile_(source)
    assert not has_compiled(source)
    assert list(temporary.iterdir()) == []


@pytest.mark.usefixtures("temporary")
def test_a_source_that_is_in_a_zip_is_compiled_without_a_marker(tmp_path: Path) -> None:
    with compiling(str(tmp_path / "package.zip" / "loops.py")) as cache:
        cache.append("")
    assert not has_compiled(str(tmp_path / "package.zip" / "loops.py"))
