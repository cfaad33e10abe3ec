"""The batches that a producer has not had acknowledged yet, and the order in which they may be sent. Sans-IO.

A partition's batches are in two queues, both in the order of their sequence numbers: *waiting* and then, in a request,
*sent*. When one of them fails with a retriable error (another leader, a lost connection), those sent behind it may fail
by that alone: the broker misses a sequence number. So the partition *stalls*: none of its batches is sent until every
request with one of them has a response or is lost. Then all that is not acknowledged waits again, in the old order and
with the old sequence numbers, by which the broker recognizes what it already has.

    sent [7 not leader] [8 out of order] [9 in flight]   waiting [10]     stalled: 10 stays
    sent []                              waiting [7] [8] [9] [10]         after the response for 9

A broker remembers the last five batches of a producer in a partition. Hence ``MAX_IN_FLIGHT``, and hence no batch is
sent that would be the fifth behind one without an acknowledgement: sent again, that one would no longer be recognized.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from skep.base.errors import ErrorCode, KafkaError
from skep.client.retry import RETRIABLE_FOR_PARTITION
from skep.wire.produce.produce_request import Buffer

MAX_IN_FLIGHT = 5
"""Requests in flight on one connection; and batches of a partition from the oldest unacknowledged one on."""
UNKNOWN_OFFSET = -1


class Written(NamedTuple):
    """What was acknowledged in one partition.

    -1 stands for an unknown offset: a broker may know that it has a batch, but no longer where. A broker that remembers
    ``MAX_IN_FLIGHT`` batches never returns that.
    """

    first_offset: int
    last_offset: int
    count: int  # type: ignore[assignment]  # hides a method of tuple that is not used here


class BatchResult(NamedTuple):
    """The result of one batch in a Produce response."""

    code: ErrorCode
    base_offset: int = UNKNOWN_OFFSET
    detail: str | None = None


class QueuedBatch:
    """One record batch that is not acknowledged yet."""

    __slots__ = ("count", "data", "number", "partition")

    def __init__(self, partition: "Partition", data: Buffer, count: int, number: int) -> None:
        self.partition, self.data, self.count, self.number = partition, data, count, number


class Partition:
    """One partition of a producer. ``in_flight`` counts the batches in ``sent`` that are in a request now."""

    __slots__ = (
        "failing_since",
        "in_flight",
        "index",
        "next_number",
        "next_sequence",
        "problem",
        "retry_at",
        "sent",
        "topic",
        "waiting",
    )

    def __init__(self, topic: str, index: int) -> None:
        self.topic, self.index = topic, index
        self.waiting: deque[QueuedBatch] = deque()
        self.sent: deque[QueuedBatch] = deque()
        self.in_flight = 0
        self.next_number = 0
        self.next_sequence = 0
        self.problem: BatchResult | None = None
        self.failing_since: float | None = None
        self.retry_at = 0.0

    @property
    def is_stalled(self) -> bool:
        return self.problem is not None

    @property
    def may_send(self) -> bool:
        """Whether a batch is waiting that the partition's own batches allow to be sent."""
        if not self.waiting or self.is_stalled:
            return False
        oldest = self.sent[0] if self.sent else self.waiting[0]
        return self.waiting[0].number - oldest.number < MAX_IN_FLIGHT

    def __str__(self) -> str:
        return f"topic '{self.topic}', partition {self.index}"


class ProduceQueue:
    """All partitions of one producer. ``unacknowledged_bytes`` is the size of all batches in it."""

    def __init__(self, *, give_up_after_s: float, pause_s: float) -> None:
        self.partitions: dict[tuple[str, int], Partition] = {}
        self.written: dict[tuple[str, int], Written] = {}
        self.unacknowledged_bytes = 0
        self.waiting_bytes = 0
        self._give_up_after_s = give_up_after_s
        self._pause_s = pause_s

    def partition(self, topic: str, index: int) -> Partition:
        found = self.partitions.get((topic, index))
        if found is None:
            found = self.partitions[topic, index] = Partition(topic, index)
        return found

    def add(self, partition: Partition, data: Buffer, count: int) -> None:
        """Queues a batch that begins with ``next_sequence``."""
        partition.waiting.append(QueuedBatch(partition, data, count, partition.next_number))
        partition.next_number += 1
        partition.next_sequence = (partition.next_sequence + count) & 0x7FFF_FFFF
        self.unacknowledged_bytes += len(data)
        self.waiting_bytes += len(data)

    def ready(self, now: float) -> Iterator[Partition]:
        """Yields the partitions whose next batch may be sent now."""
        for partition in self.partitions.values():
            if partition.may_send and partition.retry_at <= now:
                yield partition

    def take(self, partitions: Iterable[Partition], max_bytes: int) -> list[QueuedBatch]:
        """Returns the next request for a broker: one batch of each partition up to ``max_bytes``, and at least one."""
        taken: list[QueuedBatch] = []
        size = 0
        for partition in partitions:
            batch = partition.waiting[0]
            if taken and size + len(batch.data) > max_bytes:
                break
            partition.waiting.popleft()
            partition.sent.append(batch)
            partition.in_flight += 1
            size += len(batch.data)
            taken.append(batch)
        self.waiting_bytes -= size
        return taken

    def complete(
        self, batches: Iterable[QueuedBatch], results: Mapping[tuple[str, int], BatchResult], now: float
    ) -> set[tuple[str, int]]:
        """Records the results of a request. Returns the partitions whose leaders must be looked up again; raises
        KafkaError for a code that is not retriable.

        UNKNOWN_TOPIC_OR_PARTITION is retried too: when a topic was deleted, the lookup of its leaders says so.
        """
        moved = set()
        for batch in batches:
            partition = batch.partition
            result = results.get((partition.topic, partition.index))
            if result is None:
                result = BatchResult(ErrorCode.network_exception, detail="the response lacks this partition")
            partition.in_flight -= 1
            if result.code in (ErrorCode.none, ErrorCode.duplicate_sequence_number):
                self._acknowledge(batch, result.base_offset)
            elif result.code in RETRIABLE_FOR_PARTITION or (
                partition.is_stalled and result.code is ErrorCode.out_of_order_sequence_number
            ):
                moved.add((partition.topic, partition.index))
                partition.problem = partition.problem or result
            else:
                raise refusal(partition, result)
            if partition.is_stalled and partition.in_flight == 0:
                self._wait_again(partition, now)
        return moved

    def _acknowledge(self, batch: QueuedBatch, base_offset: int) -> None:
        partition = batch.partition
        partition.sent.remove(batch)
        partition.failing_since = None
        self.unacknowledged_bytes -= len(batch.data)
        first, last = base_offset, base_offset + batch.count - 1
        if base_offset == UNKNOWN_OFFSET:
            last = UNKNOWN_OFFSET
        name = (partition.topic, partition.index)
        before = self.written.get(name)
        if before is None:
            self.written[name] = Written(first, last, batch.count)
        else:
            # Not always in order: a batch that timed out is acknowledged after the one behind it.
            first, last = min(before.first_offset, first), max(before.last_offset, last)
            self.written[name] = Written(first, last, before.count + batch.count)

    def _wait_again(self, partition: Partition, now: float) -> None:
        problem, partition.problem = partition.problem, None
        assert problem is not None
        self.waiting_bytes += sum(len(batch.data) for batch in partition.sent)
        partition.waiting.extendleft(reversed(partition.sent))
        partition.sent.clear()
        self.postpone(partition, problem, now)

    def postpone(self, partition: Partition, problem: BatchResult, now: float) -> None:
        """Puts off the waiting batches of a partition; raises the error when that has lasted for too long."""
        if partition.failing_since is None:
            partition.failing_since = now
        elif now - partition.failing_since > self._give_up_after_s:
            raise refusal(partition, problem)
        partition.retry_at = now + self._pause_s


def refusal(partition: Partition, result: BatchResult) -> KafkaError:
    """Returns the error for the caller, which names the partition."""
    return KafkaError(result.code, f"{partition}: {result.detail or result.code.name}")


def results_of(response: Any) -> dict[tuple[str, int], BatchResult]:
    """Returns the results of a Produce response by partition."""
    return {
        (topic.name, partition.index): BatchResult(
            partition.error_code, partition.base_offset, getattr(partition, "error_message", None)
        )
        for topic in response.responses
        for partition in topic.partition_responses
    }
