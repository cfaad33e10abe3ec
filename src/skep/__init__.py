"""Skep: a message broker in Python that every Kafka client already speaks to.

``read_arrow``, ``read_batches`` and ``write_arrow`` are imported when they are first used: the broker and the command
line do without the libraries that they need.
"""

import importlib
from typing import Any

_HOMES = {
    "read_arrow": "skep.client.arrow.arrow_reader",
    "read_batches": "skep.client.arrow.arrow_reader",
    "write_arrow": "skep.client.arrow.arrow_writer",
}

__all__ = ["read_arrow", "read_batches", "write_arrow"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'skep' has no attribute '{name}'")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
