"""What producers were told, and whether a log agrees with it: the judge of the kill tests.

A batch is sent once under its name, or again and again by an idempotent producer. The rules:

acknowledged        there exactly once, at the offset that was acknowledged, unchanged
not acknowledged    there once or not at all, unchanged
"""

import threading
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from skep.records.batch import is_intact
from skep.records.record import batches_in, iterate_records
from tests.raw_client import RawClient
from tests.raw_requests import MEBIBYTE, Want


class Acknowledged(NamedTuple):
    topic: str
    partition: int
    offset: int
    value: bytes


class History:
    """Shared by all producers of a run. Values are unique over all of them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sent: set[bytes] = set()
        self._acknowledged: list[Acknowledged] = []

    def sent(self, values: Iterable[bytes]) -> None:
        with self._lock:
            self._sent.update(values)

    def acknowledged(self, topic: str, partition: int, base_offset: int, values: Iterable[bytes]) -> None:
        with self._lock:
            self._acknowledged += [
                Acknowledged(topic, partition, base_offset + delta, value) for delta, value in enumerate(values)
            ]

    def since(self, count: int) -> list[Acknowledged]:
        """All but the first ``count`` acknowledgements."""
        with self._lock:
            return self._acknowledged[count:]

    def was_sent(self, value: bytes) -> bool:
        with self._lock:
            return value in self._sent


class Reader:
    """Reads partitions from where it last stopped, and remembers all that it has read."""

    def __init__(self, partitions: Iterable[tuple[str, int]]) -> None:
        self._content: dict[tuple[str, int], list[bytes]] = {partition: [] for partition in partitions}

    def read_on(self, client: RawClient) -> None:
        for (topic, partition), values in self._content.items():
            for value in values_from(client, topic, partition, len(values)):
                values.append(value)

    def check(self, acknowledged: Iterable[Acknowledged]) -> None:
        """``acknowledged`` must have been taken from the history before ``read_on``."""
        for topic, partition, offset, value in acknowledged:
            values = self._content[topic, partition]
            assert offset < len(values), f"LOST: {value!r} was acknowledged at {topic}-{partition} {offset}"
            assert values[offset] == value, f"{topic}-{partition} {offset} has {values[offset]!r} and not {value!r}"

    def check_others(self, history: History) -> None:
        """Of what was not acknowledged: nothing twice, and nothing that nobody sent."""
        everything = self.values()
        assert len(everything) == len(set(everything)), f"TWICE: {_twice(everything)[:5]!r}"
        strangers = [value for value in everything if not history.was_sent(value)]
        assert not strangers, f"nobody sent {strangers[:5]!r}"

    def values(self) -> list[bytes]:
        return [value for values in self._content.values() for value in values]


def values_from(client: RawClient, topic: str, partition: int, offset: int) -> Iterator[bytes]:
    """The values from ``offset`` to the high watermark; every batch is checked on the way."""
    while True:
        fetched = client.fetch_one(Want(topic, offset, partition, max_bytes=4 * MEBIBYTE))
        assert fetched.error_code.value == 0, fetched.error_code
        if not fetched.records:
            assert offset == fetched.high_watermark, f"{topic}-{partition} cannot be read at {offset}"
            return
        for _, batch in batches_in(fetched.records):
            assert is_intact(batch), f"DAMAGED: the batch at {topic}-{partition} {offset}"
            for record in iterate_records(batch):
                if record.offset < offset:
                    continue  # a batch comes whole although its first records were asked for before
                assert record.offset == offset, f"{topic}-{partition}: {record.offset} follows {offset - 1}"
                assert record.value is not None
                yield record.value
                offset += 1


def _twice(values: list[bytes]) -> list[bytes]:
    seen: set[bytes] = set()
    return [value for value in values if value in seen or seen.add(value)]  # type: ignore[func-returns-value]
