"""Skep: a message broker in Python for every Kafka client.

``read_arrow``, ``read_batches``, ``write_arrow`` and the package ``testing`` are imported on first use, because the
broker and the command line do not need what they import.
"""

import importlib
from typing import Any

_MODULES = {
    "read_arrow": "skep.client.arrow.arrow_reader",
    "read_batches": "skep.client.arrow.arrow_reader",
    "write_arrow": "skep.client.arrow.arrow_writer",
}

__all__ = ["read_arrow", "read_batches", "write_arrow"]


def __getattr__(name: str) -> Any:
    if name == "testing":
        return importlib.import_module("skep.testing")
    if name not in _MODULES:
        raise AttributeError(f"module 'skep' has no attribute '{name}'")
    return getattr(importlib.import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES, "testing"})
