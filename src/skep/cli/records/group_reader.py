"""Reading topics as a member of a consumer group: the group's members share the partitions, and go on where it was.

What has been printed is committed, and only that: a member that is killed in between leaves a few records to be printed
again by the next one, and none unprinted.
"""

import time
from collections.abc import Mapping, Sequence
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message
from confluent_kafka import TopicPartition as ClientPartition

from skep.base.ids import TopicPartition
from skep.cli import output
from skep.cli.connection import ANSWER_WITHIN_S, Cluster
from skep.cli.failures import CommandError, reason
from skep.cli.records.topic_reader import BATCH_MESSAGES, POLL_S, Batches, open_consumer

_GIVEN_AWAY = (
    KafkaError.REBALANCE_IN_PROGRESS,
    KafkaError.ILLEGAL_GENERATION,
    KafkaError.UNKNOWN_MEMBER_ID,
    KafkaError.STALE_MEMBER_EPOCH,
    KafkaError.FENCED_MEMBER_EPOCH,
)
"""Answers to a commit that came too late: another member has the partitions, and begins before what we printed."""


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
    """Lists of messages as they come; an empty list when there is a pause. What a list held is committed when the next
    one is asked for.

    Ends when ``max_messages`` are read or nothing came for ``idle_timeout_s``; unless ``follow``, also when all
    partitions that fell to this member are read to their end.
    """
    left = max_messages
    if left == 0:
        return
    member = _Member(open_consumer(cluster, settings or {}, group), topics)
    try:
        quiet_since = time.monotonic()
        while left != 0:
            messages, ends = member.poll(left)
            if messages:
                quiet_since = time.monotonic()
                left = None if left is None else left - len(messages)
            yield messages
            member.commit(messages, ends)
            quiet_s = time.monotonic() - quiet_since
            if idle_timeout_s is not None and quiet_s >= idle_timeout_s:
                return
            if not follow and member.is_at_the_end(quiet_s):
                return
            if not follow and not messages and quiet_s >= ANSWER_WITHIN_S:
                cluster.metadata()  # a CommandError when nobody answers any more
                quiet_since = time.monotonic()
    finally:
        member.close()


class _Member:
    """Owns a subscribed consumer. Between calls ``_ended`` has the partitions whose end was seen after all else."""

    def __init__(self, consumer: Consumer, topics: Sequence[str]) -> None:
        self._consumer = consumer
        self._ended: set[TopicPartition] = set()
        self._has_joined = False
        self._committed: dict[TopicPartition, int] = {}
        consumer.subscribe(list(topics), on_assign=self._assigned)

    def poll(self, limit: int | None) -> tuple[list[Message], dict[TopicPartition, int]]:
        """Messages, at most ``limit``, and the ends of partitions that were reached with them."""
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
                raise CommandError(f"reading as a member of the group failed: {reason(error)}")
        return messages, ends

    def is_at_the_end(self, quiet_s: float) -> bool:
        if not self._has_joined:
            return False
        mine = {TopicPartition(at.topic, at.partition) for at in self._consumer.assignment()}
        # With nothing assigned there may be more to come, in a group whose partitions are handed over one by one.
        return mine <= self._ended if mine else quiet_s >= ANSWER_WITHIN_S

    def commit(self, messages: list[Message], ends: Mapping[TopicPartition, int]) -> None:
        """An end is committed too: behind the last message may be offsets that no message has, as those of the markers
        of transactions, and a group that has read all would seem to lag."""
        offsets = {TopicPartition(m.topic() or "", m.partition() or 0): (m.offset() or 0) + 1 for m in messages}
        offsets |= ends
        news = {place: offset for place, offset in offsets.items() if self._committed.get(place) != offset}
        if not news:
            return
        places = [ClientPartition(topic, partition, offset) for (topic, partition), offset in news.items()]
        try:
            self._consumer.commit(offsets=places, asynchronous=False)
        except KafkaException as error:
            if error.args[0].code() not in _GIVEN_AWAY:
                raise CommandError(f"what was read is not committed: {reason(error)}") from None
            output.note(f"The last records will be read again, by another member: {reason(error)}")
            return
        self._committed |= news

    def close(self) -> None:
        self._consumer.close()

    def _assigned(self, consumer: Any, partitions: list[ClientPartition]) -> None:
        self._has_joined = True
        for at in partitions:
            # They may have been another member's meanwhile.
            self._ended.discard(TopicPartition(at.topic, at.partition))
            self._committed.pop(TopicPartition(at.topic, at.partition), None)
