"""What one task of Spark wrote, and under which transaction: what tasks tell the driver, and the driver records."""

from typing import NamedTuple


class WrittenRange(NamedTuple):
    """The rows of one task in one partition. Between the two offsets there may be rows of others."""

    topic: str
    partition: int
    first_offset: int
    last_offset: int
    rows: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}, offsets {self.first_offset} to {self.last_offset}"


class TaskTransaction(NamedTuple):
    """A transaction that a task has left open for the driver to end."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    written: tuple[WrittenRange, ...]

    @property
    def topics(self) -> set[str]:
        return {written.topic for written in self.written}


def driver_id(query: str) -> str:
    """The transactional id under which the driver of a query, or of a batch write, records and repairs."""
    return f"spark/{query}"


def task_prefix(query: str) -> str:
    """How the transactional ids of all tasks of a query begin. The driver's does not."""
    return f"spark/{query}/"


def task_id(query: str, run: str, partition: int, attempt: int) -> str:
    """The same in every epoch, so that coordinators remember one id for each task that runs at a time, not one for
    each that ever ran; another one for each attempt, so that a second attempt never aborts what the first has written.
    """
    return f"{task_prefix(query)}{run}/{partition}.{attempt}"
