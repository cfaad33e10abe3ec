"""Reading topics as a member of a consumer group, which shares the partitions and starts at the committed offsets.

Offsets are committed after their records are printed: if a member is killed in between, the next one prints a few
records again, and none is skipped.
"""

import time
from collections.abc import Mapping, Sequence
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message
from confluent_kafka import TopicPartition as ClientPartition

from skep.base.ids import TopicPartition
from skep.cli import output
from skep.cli.connection import CONNECT_TIMEOUT_S, Cluster
from skep.cli.failures import CommandError, reason
from skep.cli.records.broker_watch import BrokerWatch
from skep.cli.records.topic_reader import BATCH_MESSAGES, POLL_S, Batches, open_consumer

_COMMIT_TOO_LATE = (
    KafkaError.REBALANCE_IN_PROGRESS,
    KafkaError.ILLEGAL_GENERATION,
    KafkaError.UNKNOWN_MEMBER_ID,
    KafkaError.STALE_MEMBER_EPOCH,
    KafkaError.FENCED_MEMBER_EPOCH,
)
"""Errors of a commit that came too late: the partitions are assigned to another member, which starts at the last
committed offset, before the records printed since."""

_NO_COORDINATOR = (
    KafkaError._TRANSPORT,
    KafkaError._TIMED_OUT,
    KafkaError._TIMED_OUT_QUEUE,
    KafkaError._WAIT_COORD,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.NOT_COORDINATOR,
    KafkaError.REQUEST_TIMED_OUT,
)
"""Errors of a commit whose coordinator is away for the moment: it is sent again."""


def read_as_member(
    cluster: Cluster,
    topics: Sequence[str],
    group: str,
    *,
    follow: bool,
    max_messages: int | None = None,
    idle_timeout_s: float | None = None,
    settings: Mapping[str, str] | None = None,
) -> Batches:
    """Yields lists of messages as they arrive; an empty list when there are none for the moment.

    The offsets of a list are committed when the next one is requested. Ends after ``max_messages`` or when no message
    arrived for ``idle_timeout_s``; without ``follow`` also when all partitions assigned to this member are read to
    their end.
    """
    left = max_messages
    if left == 0:
        return
    member = _Member(cluster, settings or {}, group, topics)
    try:
        quiet_since = time.monotonic()
        watch = BrokerWatch(cluster)
        while left != 0:
            messages, ends = member.poll(left)
            if messages:
                quiet_since = time.monotonic()
                left = None if left is None else left - len(messages)
            yield messages
            # A commit to a broker that is dead ends when it is back. Only a reader that is to end waits for it.
            member.commit(messages, ends, wait=not follow or left == 0)
            quiet_s = time.monotonic() - quiet_since
            if idle_timeout_s is not None and quiet_s >= idle_timeout_s:
                return
            if not follow and member.is_at_the_end(quiet_s):
                return
            if not follow and not messages and quiet_s >= CONNECT_TIMEOUT_S:
                cluster.metadata()  # raises CommandError if no broker answers any more
                quiet_since = time.monotonic()
            if follow:
                watch.turn(got_records=bool(messages))
    finally:
        member.close()


class _Member:
    """Owns a subscribed consumer.

    ``_ended`` holds the partitions in which the end was the last event, ``_sent`` the last offset that was sent to be
    committed, and ``_failed`` those whose commit failed and is repeated.
    """

    def __init__(self, cluster: Cluster, settings: Mapping[str, str], group: str, topics: Sequence[str]) -> None:
        self._ended: set[TopicPartition] = set()
        self._has_joined = False
        self._sent: dict[TopicPartition, int] = {}
        self._failed: dict[TopicPartition, int] = {}
        self._commits_in_flight = 0
        self._consumer = open_consumer(cluster, {**settings, "on_commit": self._commit_ended}, group)
        self._consumer.subscribe(list(topics), on_assign=self._assigned)

    def poll(self, limit: int | None) -> tuple[list[Message], dict[TopicPartition, int]]:
        """Returns at most ``limit`` messages, and the end offsets of the partitions whose end was reached."""
        first = self._consumer.poll(POLL_S)
        polled = [] if first is None else [first, *self._consumer.consume(BATCH_MESSAGES, timeout=0)]
        messages: list[Message] = []
        ends: dict[TopicPartition, int] = {}
        for message in polled:
            place = TopicPartition(message.topic() or "", message.partition() or 0)
            if (error := message.error()) is None:
                if len(messages) == limit:
                    break
                messages.append(message)
                self._ended.discard(place)
            elif error.code() == KafkaError._PARTITION_EOF:
                ends[place] = message.offset() or 0
                self._ended.add(place)
            else:
                raise CommandError(f"cannot read as a member of the group: {reason(error)}")
        return messages, ends

    def is_at_the_end(self, quiet_s: float) -> bool:
        if not self._has_joined:
            return False
        mine = {TopicPartition(at.topic, at.partition) for at in self._consumer.assignment()}
        # With no assignment yet, partitions may still come: other members hand them over one by one.
        return mine <= self._ended if mine else quiet_s >= CONNECT_TIMEOUT_S

    def commit(self, messages: list[Message], ends: Mapping[TopicPartition, int], *, wait: bool) -> None:
        """Commits the offsets of messages, and end offsets; with ``wait`` returns when they are committed.

        The last offsets of a partition may belong to no message, such as transaction markers. Without the end offset, a
        group that has read everything would show a lag.
        """
        offsets = {TopicPartition(m.topic() or "", m.partition() or 0): (m.offset() or 0) + 1 for m in messages}
        offsets |= ends
        changed = {place: offset for place, offset in offsets.items() if self._sent.get(place) != offset}
        if not self._commits_in_flight:
            changed = self._failed | changed
            self._failed = {}
        if not changed:
            return
        self._sent |= changed
        places = [ClientPartition(topic, partition, offset) for (topic, partition), offset in changed.items()]
        try:
            if wait:
                self._consumer.commit(offsets=places, asynchronous=False)
            else:
                self._consumer.commit(offsets=places, asynchronous=True)
                self._commits_in_flight += 1
        except KafkaException as error:
            self._refused(error.args[0])

    def _commit_ended(self, error: KafkaError | None, places: list[ClientPartition]) -> None:
        """Is called by ``poll`` for a commit that nobody waited for."""
        self._commits_in_flight -= 1
        if error is None:
            return
        if error.code() in _NO_COORDINATOR:
            for at in places:
                place = TopicPartition(at.topic, at.partition)
                if self._sent.get(place) == at.offset:
                    self._failed[place] = at.offset
            return
        self._refused(error)

    def _refused(self, error: KafkaError) -> None:
        if error.code() not in _COMMIT_TOO_LATE:
            raise CommandError(f"cannot commit offsets: {reason(error)}") from None
        output.note(f"warning: the last records were not committed; another member reads them again: {reason(error)}")

    def close(self) -> None:
        self._consumer.close()

    def _assigned(self, consumer: Any, partitions: list[ClientPartition]) -> None:
        self._has_joined = True
        for at in partitions:
            # Another member may have had them in the meantime.
            self._ended.discard(TopicPartition(at.topic, at.partition))
            self._sent.pop(TopicPartition(at.topic, at.partition), None)
            self._failed.pop(TopicPartition(at.topic, at.partition), None)
