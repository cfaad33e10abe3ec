"""Compiles loops over records with numba, which the extra ``fast`` installs. Without it they run as Python.

A kernel is written so that it is right both ways. A number has 64 bits in compiled code and as many as it needs in
Python, so where one can outgrow 64 bits the kernel wraps or masks it. ``int64`` and ``uint64`` say a type to numba,
which makes a float of the sum of a signed and an unsigned number, and compiles a function once more for an argument
that is a literal; they change nothing in Python.

All kernels of a module are in one file, because numba's cache checks the file of a function and not the files of what
it calls.
"""

import importlib
from collections.abc import Callable
from typing import Any

from skep.records.kernel_cache import compiling, own_directory

numba: Any
try:
    numba = importlib.import_module("numba")
except ImportError:
    numba = None

IS_COMPILED = numba is not None


def _wrapped(number: int) -> int:
    return ((number + (1 << 63)) & ((1 << 64) - 1)) - (1 << 63)


int64: Any = numba.int64 if IS_COMPILED else int
uint64: Any = numba.uint64 if IS_COMPILED else int
wrapped: Any = numba.int64 if IS_COMPILED else _wrapped
"""Returns what is left of a number in 64 bits, with its sign."""


def kernel(**options: Any) -> Any:
    """Compiles a function when it is first called with new types of arguments; ``options`` are numba's.

    Without numba's run time, because no kernel allocates an array: counting references to arrays that one kernel passes
    to another, an atomic operation each, takes longer than reading a record (20 of 35 ns).
    """

    def compiled(function: Callable[..., Any]) -> Any:
        if not IS_COMPILED:
            return function
        decorate = numba.njit(cache=True, nogil=True, _nrt=False, **options)
        try:
            return decorate(function)
        except RuntimeError as error:
            if "no locator available" not in str(error):
                raise
        config: Any = numba.config
        before = config.CACHE_DIR
        config.CACHE_DIR = own_directory()
        try:
            return decorate(function)
        finally:
            config.CACHE_DIR = before

    return compiled


def compile_ahead(source: str, *calls: tuple[Any, ...]) -> None:
    """Compiles the kernels of a file, or loads them from the cache, for calls such as these: a kernel, its arguments.

    A module of kernels ends with it, so that a process has all of them or waits for the one that compiles.
    """
    if not IS_COMPILED:
        return
    with compiling(source) as cache:
        for function, *arguments in calls:
            function.compile(tuple(numba.typeof(argument) for argument in arguments))
        cache.append(calls[0][0].stats.cache_path)
