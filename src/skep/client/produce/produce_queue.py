"""What a producer has still to write, and in which order it may go out; without any I/O.

A partition's batches lie in two queues, both in the order of their sequence numbers: *waiting* and then, in a request,
*sent*. When one of them comes back with an error that passes (another leader, a lost connection), those sent
behind it may fail by that alone: the broker misses a sequence number. So the partition *stalls*: nothing of it goes out
until every request that holds a batch of it has been answered or lost; then all that is not acknowledged waits again,
in the old order and with the old sequence numbers, and what the broker has already it knows by these.

    sent [7 not leader] [8 out of order] [9 on its way]  waiting [10]     stalled: 10 stays
    sent []                              waiting [7] [8] [9] [10]         when 9 is answered

A broker remembers the last five batches of a producer in a partition; hence ``MAX_IN_FLIGHT``, and hence no batch goes
out that would be the fifth behind one without an acknowledgement: sent again, that one would not be known any more.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from skep.base.errors import ErrorCode, KafkaError
from skep.wire.produce.produce_request import Buffer

MAX_IN_FLIGHT = 5
"""Requests without an answer on one connection; and batches of a partition from the oldest that is unacknowledged."""
UNKNOWN_OFFSET = -1

PASSING = frozenset(
    {
        ErrorCode.leader_not_available,
        ErrorCode.not_leader_or_follower,
        ErrorCode.fenced_leader_epoch,
        ErrorCode.unknown_leader_epoch,
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.request_timed_out,
        ErrorCode.network_exception,
        ErrorCode.not_enough_replicas,
        ErrorCode.not_enough_replicas_after_append,
        ErrorCode.kafka_storage_error,
        ErrorCode.coordinator_load_in_progress,
        ErrorCode.coordinator_not_available,
        ErrorCode.not_coordinator,
        ErrorCode.concurrent_transactions,
    }
)
"""After these the same batch is sent again. A topic that is really gone shows when its leaders are looked up."""


class Written(NamedTuple):
    """What was acknowledged in one partition.

    -1 for an offset that is not known: a broker may know that it has a batch, and no longer where. None that remembers
    ``MAX_IN_FLIGHT`` batches says so.
    """

    first_offset: int
    last_offset: int
    count: int  # type: ignore[assignment]  # a tuple has a method of that name, which nobody needs here


class Answer(NamedTuple):
    """What a broker says of one batch."""

    code: ErrorCode
    base_offset: int = UNKNOWN_OFFSET
    detail: str | None = None


class Batch:
    """One record batch, on its way until it is acknowledged."""

    __slots__ = ("count", "data", "number", "partition")

    def __init__(self, partition: "Partition", data: Buffer, count: int, number: int) -> None:
        self.partition, self.data, self.count, self.number = partition, data, count, number


class Partition:
    """One partition as the producer sees it. ``unanswered`` of the batches in ``sent`` are in a request now."""

    __slots__ = (
        "failing_since",
        "index",
        "next_number",
        "next_sequence",
        "problem",
        "retry_at",
        "sent",
        "topic",
        "unanswered",
        "waiting",
    )

    def __init__(self, topic: str, index: int) -> None:
        self.topic, self.index = topic, index
        self.waiting: deque[Batch] = deque()
        self.sent: deque[Batch] = deque()
        self.unanswered = 0
        self.next_number = 0
        self.next_sequence = 0
        self.problem: Answer | None = None
        self.failing_since: float | None = None
        self.retry_at = 0.0

    @property
    def is_stalled(self) -> bool:
        return self.problem is not None

    @property
    def may_send(self) -> bool:
        """Whether a batch waits that the partition's own batches allow to go out."""
        if not self.waiting or self.is_stalled:
            return False
        oldest = self.sent[0] if self.sent else self.waiting[0]
        return self.waiting[0].number - oldest.number < MAX_IN_FLIGHT

    def __str__(self) -> str:
        return f"topic '{self.topic}', partition {self.index}"


class ProduceQueue:
    """All partitions of one producer. ``unacknowledged_bytes`` is what the batches in it take of the memory."""

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
        """Takes a batch that begins with ``next_sequence``."""
        partition.waiting.append(Batch(partition, data, count, partition.next_number))
        partition.next_number += 1
        partition.next_sequence = (partition.next_sequence + count) & 0x7FFF_FFFF
        self.unacknowledged_bytes += len(data)
        self.waiting_bytes += len(data)

    def ready(self, now: float) -> Iterator[Partition]:
        """Partitions that have something to send and may."""
        for partition in self.partitions.values():
            if partition.may_send and partition.retry_at <= now:
                yield partition

    def take(self, partitions: Iterable[Partition], max_bytes: int) -> list[Batch]:
        """The next request for a broker: one batch of each of these partitions, the first one however large it is."""
        taken: list[Batch] = []
        size = 0
        for partition in partitions:
            batch = partition.waiting[0]
            if taken and size + len(batch.data) > max_bytes:
                break
            partition.waiting.popleft()
            partition.sent.append(batch)
            partition.unanswered += 1
            size += len(batch.data)
            taken.append(batch)
        self.waiting_bytes -= size
        return taken

    def answered(
        self, batches: Iterable[Batch], answers: Mapping[tuple[str, int], Answer], now: float
    ) -> set[tuple[str, int]]:
        """What became of a request. Partitions whose leaders must be looked up again; KafkaError for what does not
        pass."""
        moved = set()
        for batch in batches:
            partition = batch.partition
            answer = answers.get((partition.topic, partition.index))
            if answer is None:
                answer = Answer(ErrorCode.network_exception, detail="the broker's answer leaves it out")
            partition.unanswered -= 1
            if answer.code in (ErrorCode.none, ErrorCode.duplicate_sequence_number):
                self._acknowledge(batch, answer.base_offset)
            elif answer.code in PASSING or (
                partition.is_stalled and answer.code is ErrorCode.out_of_order_sequence_number
            ):
                moved.add((partition.topic, partition.index))
                partition.problem = partition.problem or answer
            else:
                raise refusal(partition, answer)
            if partition.is_stalled and partition.unanswered == 0:
                self._wait_again(partition, now)
        return moved

    def _acknowledge(self, batch: Batch, base_offset: int) -> None:
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
            # Not always in order: one that timed out is acknowledged after the one behind it.
            first, last = min(before.first_offset, first), max(before.last_offset, last)
            self.written[name] = Written(first, last, before.count + batch.count)

    def _wait_again(self, partition: Partition, now: float) -> None:
        problem, partition.problem = partition.problem, None
        assert problem is not None
        self.waiting_bytes += sum(len(batch.data) for batch in partition.sent)
        partition.waiting.extendleft(reversed(partition.sent))
        partition.sent.clear()
        self.postpone(partition, problem, now)

    def postpone(self, partition: Partition, problem: Answer, now: float) -> None:
        """What waits in the partition cannot go out now; the error is raised when that has been so for too long."""
        if partition.failing_since is None:
            partition.failing_since = now
        elif now - partition.failing_since > self._give_up_after_s:
            raise refusal(partition, problem)
        partition.retry_at = now + self._pause_s


def refusal(partition: Partition, answer: Answer) -> KafkaError:
    """The error that tells the caller which partition it was."""
    return KafkaError(answer.code, f"{partition}: {answer.detail or answer.code.name}")


def answers_of(response: Any) -> dict[tuple[str, int], Answer]:
    """A Produce response by partition."""
    return {
        (topic.name, partition.index): Answer(
            partition.error_code, partition.base_offset, getattr(partition, "error_message", None)
        )
        for topic in response.responses
        for partition in topic.partition_responses
    }
