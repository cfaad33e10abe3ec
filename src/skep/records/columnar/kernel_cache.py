"""Loads the kernels with a cache directory for their compiled code, wherever the package is installed.

numba keeps compiled code beside the source or in the user's cache directory. Where it can write to neither, as on
executors of a cluster that run as a user without a home, it refuses to define the functions at all. Then a directory
below the one for temporary files is used, the same for all processes of a user, because compiling takes seconds. Its
content is code that will be run, so no other user may be able to write to it.
"""

import importlib
import os
import stat
import tempfile
from types import ModuleType
from typing import Any

import numba


def _load() -> ModuleType:
    name = "skep.records.columnar.columnar_kernels"
    try:
        return importlib.import_module(name)
    except RuntimeError as error:
        if "no locator available" not in str(error):
            raise
    config: Any = numba.config
    before = config.CACHE_DIR
    config.CACHE_DIR = own_directory()
    try:
        return importlib.import_module(name)
    finally:
        config.CACHE_DIR = before


def own_directory() -> str:
    """Returns a directory that only this user can write to: the usual one, or a new one if another user owns that."""
    path = os.path.join(tempfile.gettempdir(), f"skep-kernels-{os.getuid()}")
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        found = os.lstat(path)
        is_ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o022
        return path if is_ours else tempfile.mkdtemp(prefix="skep-kernels-")
    return path


kernels = _load()
