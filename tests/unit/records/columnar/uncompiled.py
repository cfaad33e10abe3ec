"""The kernels as plain Python over arrays that refuse every index outside of them, also the negative ones."""

import contextlib
import inspect
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any
from unittest import mock

import numpy as np

from skep.records.columnar import arrays, columnar_kernels, decoder, encoder
from tests.kernel_variants import as_python


class Walled(np.ndarray):
    """numpy itself checks the upper bound, and takes a negative index for one from the end."""

    def __getitem__(self, index: Any) -> Any:
        _refuse_negative(index)
        return super().__getitem__(index)

    def __setitem__(self, index: Any, value: Any) -> None:
        _refuse_negative(index)
        super().__setitem__(index, value)


def _refuse_negative(index: Any) -> None:
    for number in index if isinstance(index, tuple) else (index,):
        if isinstance(number, int | np.integer) and number < 0:
            raise IndexError(f"index {number}")


def _walled(argument: Any) -> Any:
    if isinstance(argument, tuple):
        return tuple(_walled(part) for part in argument)
    return argument.view(Walled) if isinstance(argument, np.ndarray) else argument


def _with_walls(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*arguments: Any) -> Any:
        # Compiled code lets numbers wrap without a word; what comes of it is checked by the kernels.
        with np.errstate(over="ignore"):
            return function(*_walled(arguments))

    return call


def _load() -> ModuleType:
    module = as_python(columnar_kernels)
    for name, function in inspect.getmembers(module, inspect.isfunction):
        if not name.startswith("_") and function.__module__ == module.__name__:
            setattr(module, name, _with_walls(function))
    return module


_MODULE = _load()


@contextlib.contextmanager
def uncompiled_kernels() -> Iterator[None]:
    """Within it the codec uses the kernels as Python."""
    with (
        mock.patch.object(arrays, "kernels", _MODULE),
        mock.patch.object(decoder, "kernels", _MODULE),
        mock.patch.object(encoder, "kernels", _MODULE),
    ):
        yield
