"""The kernels as plain Python beside the compiled ones, in a process that has numba."""

import contextlib
import importlib.util
from collections.abc import Iterator
from types import ModuleType
from unittest import mock

from skep.records import kernel_compiler
from skep.storage.compaction import batch_reader, compaction_pass, kernels

WITHOUT_NUMBA = {"IS_COMPILED": False, "int64": int, "uint64": int, "wrapped": kernel_compiler._wrapped}


def as_python(module: ModuleType) -> ModuleType:
    """The module once more, as it is where numba is not installed."""
    spec = importlib.util.spec_from_file_location(f"uncompiled_{module.__name__}", str(module.__file__))
    assert spec is not None
    assert spec.loader is not None
    copy = importlib.util.module_from_spec(spec)
    with mock.patch.multiple(kernel_compiler, **WITHOUT_NUMBA):
        spec.loader.exec_module(copy)
    return copy


COMPACTION_KERNELS = {"compiled": kernels, "python": as_python(kernels)}


@contextlib.contextmanager
def compacting_with(variant: str) -> Iterator[None]:
    """Within it compaction in this process uses this variant."""
    chosen = COMPACTION_KERNELS[variant]
    with mock.patch.object(compaction_pass, "kernels", chosen), mock.patch.object(batch_reader, "kernels", chosen):
        yield
