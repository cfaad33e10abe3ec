"""Compiles the kernels before they are needed, in a process of low priority: ``skep serve`` starts it when it is ready.

Without it the first compaction, and the first ``read_arrow`` or task of Spark, would wait for the compiler. No process
is started if everything is in the cache. The process ends when it has compiled, or when the broker ends: its standard
input is a pipe from there.
"""

import asyncio
import contextlib
import importlib
import importlib.util
import os
import sys
import threading

from skep.records.kernel_cache import has_compiled, use_if_needed

CACHE_DIRECTORY = ".kernels"
"""In the data directory; created only where compiled kernels cannot be cached elsewhere."""

_NICENESS = 10
_PACKAGE = os.path.dirname(os.path.dirname(os.path.dirname(__file__)))
_NEEDS = {
    # Those of columns first: somebody waits for a read, and nobody for a compaction.
    "skep.records.columnar.columnar_kernels": ("numba", "pyarrow"),
    "skep.storage.compaction.kernels": ("numba",),
}


def is_compiler_installed() -> bool:
    return importlib.util.find_spec("numba") is not None


def missing() -> list[str]:
    """Returns the modules whose kernels can be compiled here, and are not yet."""
    return [
        name
        for name, libraries in _NEEDS.items()
        if all(importlib.util.find_spec(library) for library in libraries) and not has_compiled(_source(name))
    ]


def _source(module: str) -> str:
    return os.path.join(_PACKAGE, *module.split(".")[1:]) + ".py"


async def compile_missing(data_directory: str) -> None:
    """Returns when everything is compiled. When cancelled, the process is gone afterwards."""
    if not missing():
        return
    try:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-P",
            "-m",
            __name__,
            os.path.join(data_directory, CACHE_DIRECTORY),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.DEVNULL,
            # Ctrl-C and Ctrl-Z go to all processes of the terminal. One that is stopped while it compiles would keep
            # the others waiting.
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        )
    except OSError:
        return  # no process could be started; the kernels are compiled when they are first used
    try:
        await process.wait()
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()


def compile_now(modules: list[str]) -> None:
    """Importing a module of kernels compiles them. Raises ImportError if a library that it needs is broken."""
    for name in modules:
        importlib.import_module(name)


def main(cache_directory: str) -> None:
    os.nice(_NICENESS)
    threading.Thread(target=_end_with_broker, daemon=True).start()
    use_if_needed(cache_directory)
    with contextlib.suppress(ImportError):  # whoever needs the kernels will say what is missing
        compile_now(missing())


def _end_with_broker() -> None:
    # Not sys.stdin: a thread that waits in its buffer makes Python abort when the process ends by itself.
    while os.read(0, 1024):
        pass
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1])
