"""The libraries for columns, imported when they are first needed and asked for by name when they are missing."""

import importlib
from typing import Any

from skep.client.errors import MissingExtra

_COLUMNAR = "skep.records.columnar"


def columnar() -> Any:
    """``skep.records.columnar``; MissingExtra when what it needs is not installed."""
    try:
        return importlib.import_module(_COLUMNAR)
    except ModuleNotFoundError as error:
        raise missing(error) from None


def pyarrow() -> Any:
    columnar()
    return importlib.import_module("pyarrow")


def missing(error: ModuleNotFoundError) -> MissingExtra:
    return MissingExtra(f'Arrow columns need {error.name}, which is not installed: pip install "skep[arrow]"')
