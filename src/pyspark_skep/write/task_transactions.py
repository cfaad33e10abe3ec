"""What a Spark task wrote and under which transaction. Tasks send it to the driver, and the driver records it."""

from typing import NamedTuple


class WrittenRange(NamedTuple):
    """The rows of one task in one partition. Rows of other tasks may lie between the two offsets."""

    topic: str
    partition: int
    first_offset: int
    last_offset: int
    rows: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}, offsets {self.first_offset} to {self.last_offset}"


class TaskTransaction(NamedTuple):
    """A transaction that a task left open for the driver to end."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    written: tuple[WrittenRange, ...]

    @property
    def topics(self) -> set[str]:
        return {written.topic for written in self.written}


def driver_id(query: str) -> str:
    """Returns the transactional id of the driver of a query or of a batch write."""
    return f"spark/{query}"


def task_prefix(query: str) -> str:
    """Returns the prefix of the transactional ids of all tasks of a query. The driver's id does not have it."""
    return f"spark/{query}/"


def task_id(query: str, run: str, partition: int, attempt: int) -> str:
    """Returns the transactional id of a task.

    It is the same in every epoch, so coordinators keep one id for each task that runs at a time, not one for each that
    ever ran. It differs by attempt, so a second attempt never aborts what the first has written.
    """
    return f"{task_prefix(query)}{run}/{partition}.{attempt}"
