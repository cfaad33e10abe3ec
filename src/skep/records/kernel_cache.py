"""Where compiled kernels are kept, and whether they are there: all that can be said without importing numba.

numba keeps compiled code beside the source or in the user's cache directory. Where it can write to neither, as on
executors of a cluster that run as a user without a home, it gets ``own_directory``.

Compiling takes seconds, and many processes may need the same kernels at once: workers of Spark, processes of tests. So
one compiles at a time, and then leaves a marker; the others wait, and load what it has compiled.
"""

import contextlib
import fcntl
import glob
import hashlib
import importlib.util
import os
import stat
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import IO

LONGEST_WAIT_S = 120.0
_PAUSE_S = 0.05
_CACHE_VARIABLE = "NUMBA_CACHE_DIR"


def own_directory() -> str:
    """Returns a directory that only this user can write to: the usual one, or a new one if another user owns that.

    It is below the directory for temporary files and the same for all processes of a user. It may hold code that will
    be run, so no other user may be able to write to it.
    """
    return _usual_directory() or tempfile.mkdtemp(prefix="skep-kernels-")


def _usual_directory() -> str | None:
    path = os.path.join(tempfile.gettempdir(), f"skep-kernels-{os.getuid()}")
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        found = os.lstat(path)
        is_ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o022
        return path if is_ours else None
    except OSError:
        return None
    return path


def use_if_needed(directory: str) -> None:
    """Makes numba keep compiled kernels in ``directory`` if it can write neither beside their source nor to the user's
    cache. Call it before numba is imported."""
    if _CACHE_VARIABLE in os.environ:
        return
    package = os.path.dirname(__file__)
    home = os.path.expanduser("~/.cache")
    if not any(os.access(path, os.W_OK) for path in (os.path.join(package, "__pycache__"), package, home)):
        os.environ[_CACHE_VARIABLE] = directory


def has_compiled(source: str) -> bool:
    """Returns whether the kernels of this file have been compiled and are still in the cache."""
    marker = _marker(source)
    if marker is None:
        return False
    try:
        with open(marker) as file:
            cache = file.read()
    except OSError:
        return False
    module = os.path.splitext(os.path.basename(source))[0]
    return bool(glob.glob(os.path.join(glob.escape(cache), f"{module}.*.nbi")))


@contextlib.contextmanager
def compiling(source: str) -> Iterator[list[str]]:
    """Waits until no other process compiles this file. The body adds the path of the cache to the list it gets.

    Does not wait if everything is compiled, or if the marker has no place.
    """
    marker = _marker(source)
    cache: list[str] = []
    if marker is None or has_compiled(source):
        yield cache
        return
    with contextlib.ExitStack() as held:
        with contextlib.suppress(OSError):
            _lock(held.enter_context(open(f"{marker}.lock", "w")))
        yield cache
        with contextlib.suppress(OSError), open(marker, "w") as file:
            file.write("".join(cache))


def _lock(file: IO[str]) -> None:
    """Returns without the lock after a long time: to compile twice is better than to wait for a process that hangs."""
    deadline = time.monotonic() + LONGEST_WAIT_S
    while time.monotonic() < deadline:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            time.sleep(_PAUSE_S)


def _marker(source: str) -> str | None:
    """Returns the path of the file that says where the cache of this source is; None if there is no place for it.

    The name has what numba's cache depends on, except the processor: the directory is not shared by machines.
    """
    directory = _usual_directory()
    numba = importlib.util.find_spec("numba")
    if directory is None or numba is None or numba.origin is None:
        return None
    try:
        stamps = [(path, os.stat(path).st_mtime_ns, os.stat(path).st_size) for path in (source, numba.origin)]
    except OSError:
        return None  # the source is in a zip
    key = repr((stamps, sys.version))
    return os.path.join(directory, f"compiled-{hashlib.sha256(key.encode()).hexdigest()[:32]}")
