"""Skep: a message broker in Python for every Kafka client.

``read_arrow``, ``read_batches``, ``write_arrow``, what belongs to queues (``consume``, ``ask``, ``answer`` ...) and the
package ``testing`` are imported on first use, because the broker and the command line do not need what they import.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from skep import testing as testing
    from skep.client.arrow.arrow_reader import read_arrow, read_batches
    from skep.client.arrow.arrow_writer import write_arrow
    from skep.queue.answer import answer
    from skep.queue.asker import Asker, AskFailed, AskTimeout
    from skep.queue.message import Message, Reject, RetryLater
    from skep.queue.queue_consumer import QueueConsumer, consume
    from skep.queue.shared_asker import ask
    from skep.queue.statistics import Statistics

_MODULES = {
    "AskFailed": "skep.queue.asker",
    "AskTimeout": "skep.queue.asker",
    "Asker": "skep.queue.asker",
    "Message": "skep.queue.message",
    "QueueConsumer": "skep.queue.queue_consumer",
    "Reject": "skep.queue.message",
    "RetryLater": "skep.queue.message",
    "Statistics": "skep.queue.statistics",
    "answer": "skep.queue.answer",
    "ask": "skep.queue.shared_asker",
    "consume": "skep.queue.queue_consumer",
    "read_arrow": "skep.client.arrow.arrow_reader",
    "read_batches": "skep.client.arrow.arrow_reader",
    "write_arrow": "skep.client.arrow.arrow_writer",
}

__all__ = [
    "AskFailed",
    "AskTimeout",
    "Asker",
    "Message",
    "QueueConsumer",
    "Reject",
    "RetryLater",
    "Statistics",
    "answer",
    "ask",
    "consume",
    "read_arrow",
    "read_batches",
    "write_arrow",
]


def __getattr__(name: str) -> Any:
    if name == "testing":
        return importlib.import_module("skep.testing")
    if name not in _MODULES:
        raise AttributeError(f"module 'skep' has no attribute '{name}'")
    return getattr(importlib.import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES, "testing"})
