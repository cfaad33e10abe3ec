"""Imports of pyarrow, numpy and numba on first use; without them the error names the extra to install.

The broker and most commands of the command line run without these libraries.
"""

import importlib
from typing import Any

from skep.base.extras import how_to_install
from skep.client.errors import MissingExtra

_COLUMNAR = "skep.records.columnar"


def columnar() -> Any:
    """Returns ``skep.records.columnar``; raises MissingExtra when a library that it needs is not installed."""
    try:
        return importlib.import_module(_COLUMNAR)
    except ModuleNotFoundError as error:
        raise _missing(error) from None


def pyarrow() -> Any:
    columnar()
    return importlib.import_module("pyarrow")


def _missing(error: ModuleNotFoundError) -> MissingExtra:
    return MissingExtra(f"Arrow columns need {error.name}, which is not installed: {how_to_install('arrow')}")
