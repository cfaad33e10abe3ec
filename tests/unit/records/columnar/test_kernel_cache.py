"""Where compiled kernels are kept when neither the installation nor the home can be written to."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from skep.records.columnar.kernel_cache import own_directory

WITHOUT_A_PLACE = """
from numba.core import caching
caching.CacheImpl._locator_classes = [caching.UserProvidedCacheLocator]
from skep.records.columnar import kernel_cache
print(kernel_cache.kernels.find_batches.stats.cache_path)
"""


def test_kernels_are_kept_below_the_temporary_directory_where_there_is_no_other_place(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "NUMBA_CACHE_DIR"}
    environment |= {"TMPDIR": str(tmp_path), "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    run = subprocess.run(
        [sys.executable, "-c", WITHOUT_A_PLACE],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert Path(run.stdout.strip()).is_relative_to(tmp_path / f"skep-kernels-{os.getuid()}")


def test_a_directory_that_others_could_have_filled_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    usual = tmp_path / f"skep-kernels-{os.getuid()}"
    assert own_directory() == str(usual)
    assert usual.stat().st_mode & 0o777 == 0o700
    assert own_directory() == str(usual)
    usual.chmod(0o777)
    assert own_directory() != str(usual)
    usual.rmdir()
    (tmp_path / "elsewhere").mkdir()
    usual.symlink_to(tmp_path / "elsewhere")
    assert own_directory() != str(usual)
