"""What a job of the worker is, and the messages between the broker and its worker.

Both pipes carry JSON, one object a line. The first line to the worker has its settings. Every other line names a job::

    -> {"bootstrap": "127.0.0.1:9092", "directory": "/data/held", "node_id": 1, "log_format": ..., "log_level": ...}
    -> {"job": "held", "partitions": [...], ...}         the state of a job: replaces the one before, has no reply
    -> {"job": "held"}                                   the job has nothing to do any more
    -> {"job": "dead-letters", "id": 7, ...}             a request, answered once, in any order
    <- {"id": 7, "error": null, ...}
    -> {"job": "stop"}                                   finish what is under way, then end

The broker's side is ``broker/worker/worker_process.py``: ``tell`` sends a state, also to every process that takes the
place of one that died; ``ask`` sends a request once. When standard input ends, the broker is gone, and the worker exits
at once. A job must be correct if it ends at any step.

A job is a class with the methods of ``Job``, and a row in the table of ``__main__.py``.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

Message = dict[str, Any]


@dataclass(frozen=True)
class Settings:
    """The settings that every job has."""

    bootstrap: str
    """The address of the broker that has started this process."""
    directory: str
    """For files that can be made again from the logs. This process alone uses it."""
    node_id: int
    security: dict[str, str] = field(default_factory=dict, repr=False)
    """How brokers log in to each other, under the names of librdkafka."""
    log_format: str = "text"
    log_level: str = "INFO"

    @property
    def client_id(self) -> str:
        return f"skep-worker-{self.node_id}"


class Job(Protocol):
    """Lives in its own threads. It is made when its first message arrives."""

    def receive(self, message: Message, reply: Callable[[Message], None]) -> None:
        """Takes a message. Called in the one thread that reads the pipe, so it must not wait for anything.

        ``reply`` may be called later and in any thread, with the fields of the response; the id is added to them. A
        message without an id has none.
        """

    def close(self) -> None:
        """Finishes what is under way, in about a second. Nothing is received afterwards."""
