"""Gives dead records to their share group again, each once.

In place: the leader of the partition opens the record again, with no deliveries counted; nothing is copied, and other
groups notice nothing. From the copy: the record is no longer in the log, and the dead letter has a copy, which is
produced to the topic again; every reader of the topic gets that.

What is redriven is marked in the dead-letter topic. A copy and its mark are one transaction. Records that are opened in
place are marked twice::

    begun, with the generation of the share state     committed
    reopen, if the generation is still that one       the leader changes the generation with it
    done                                              committed

If this process dies in between, the next redrive of the group finds ``begun`` without ``done``. It sends the same
request again: if the generation is unchanged, the records are opened now; if it has changed, they were opened before.
So no record is opened twice. If the offsets of the group were reset in between, the records are not opened.

If the topic was deleted in between, even if it was created again, it is unknown whether the records had been opened.
Then ``begun`` does not count (``Sources.applies``), and the records are produced from their copies, perhaps a second
time.

The transactional id lets only one redrive of a group work at a time. The marks are read after its InitProducerId: from
then on no earlier redrive can add one.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from confluent_kafka import KafkaException, Producer

from skep.base.dead_letters import RedriveMark, headers_of, original_headers, short_name
from skep.base.errors import ErrorCode, KafkaError
from skep.base.ids import TopicPartition
from skep.cli.connection import Cluster
from skep.cli.failures import CommandError, reason
from skep.cli.log_offsets import earliest_offsets
from skep.cli.queues.dead_letter_reader import DeadLetterReader, StoredLetter
from skep.client.cluster_client import ClusterClient
from skep.client.commands import command_to_leader
from skep.client.errors import Unreachable

MAX_BATCH = 200
"""Letters that are redriven together. They are of one partition."""
MAX_BATCH_BYTES = 16 << 20
_TRIES = 5
_PAUSE_S = 0.5
_TIMEOUT_S = 30.0

BatchKey = tuple[int, str, int]
"""The partition of the dead-letter topic, the topic and the partition of the records."""


class Fate(NamedTuple):
    """What can be done with letters of one partition."""

    in_place: list[StoredLetter]
    from_copy: list[StoredLetter]
    lost: list[StoredLetter]


@dataclass
class Tally:
    """How many records were redriven. ``unfinished``: they need no redrive, they are delivered or will be.

    ``lost``: neither the record nor a copy is left. ``resumed``: an earlier redrive had begun with them.
    """

    in_place: int = 0
    from_copy: int = 0
    unfinished: int = 0
    lost: int = 0
    resumed: int = 0


class Sources:
    """Knows whether records are still in their topics. A topic is what has the same id, not the same name."""

    def __init__(self, cluster: Cluster, topic_ids: Callable[[str], str | None]) -> None:
        self._cluster = cluster
        self._topic_ids = topic_ids
        self._known: dict[str, tuple[str, int] | None] = {}

    def fate(self, topic: str, partition: int, letters: Sequence[StoredLetter]) -> Fate:
        found = self._topic(topic)
        fate = Fate([], [], [])
        if found is None or partition >= found[1]:
            fate.lost.extend(letters)
            return fate
        place = TopicPartition(topic, partition)
        start = earliest_offsets(self._cluster, [place])[place]
        for one in letters:
            is_same_topic = one.letter.topic_id in ("", found[0])
            if is_same_topic and one.letter.offset >= start:
                fate.in_place.append(one)
            else:
                (fate.from_copy if one.letter.has_copy else fate.lost).append(one)
        return fate

    def topic_id(self, topic: str) -> str:
        """Returns the id of a topic in which ``fate`` has found records."""
        found = self._topic(topic)
        assert found is not None
        return found[0]

    def applies(self, mark: RedriveMark) -> bool:
        """Whether the topic of a mark is still there. Marks of earlier versions have no id."""
        found = self._topic(mark.topic)
        return found is not None and mark.topic_id in ("", found[0])

    def _topic(self, topic: str) -> tuple[str, int] | None:
        """Returns the id of a topic and its number of partitions."""
        if topic not in self._known:
            found = self._cluster.metadata().topics.get(topic)
            topic_id = None if found is None else self._topic_ids(topic)
            self._known[topic] = None if found is None or topic_id is None else (topic_id, len(found.partitions))
        return self._known[topic]


class Redrive:
    """Collects letters, and redrives those of a partition when there are enough. ``end`` redrives the rest.

    When it is made, no other redrive of the group can write marks any more.
    """

    def __init__(
        self,
        cluster: Cluster,
        client: ClusterClient,
        sources: Sources,
        group: str,
        topic: str,
        rate: float | None = None,
    ) -> None:
        self.tally = Tally()
        self._client = client
        self._sources = sources
        self._group = group
        self._topic = topic
        self._rate = rate
        self._begun = time.monotonic()
        self._size = MAX_BATCH if rate is None else max(1, min(MAX_BATCH, int(rate)))
        self._batches: dict[BatchKey, list[StoredLetter]] = {}
        self._bytes = 0
        settings = {"transactional.id": f"skep.redrive.{short_name(group)}", "message.max.bytes": 1_000_000_000}
        self._producer = Producer(cluster.config(settings))
        self._producer.init_transactions(_TIMEOUT_S)

    def run(self, read: Callable[[], DeadLetterReader]) -> None:
        """Redrives all letters of a reader. It is made here: what is read before no other redrive can write may be
        redriven by that one."""
        reader = read()
        for partition, mark in reader.unfinished:
            self.resume(partition, mark)
        for found in reader.letters():
            if not reader.is_redriven(found):
                self.take(found)
        self.end()

    def resume(self, partition: int, mark: RedriveMark) -> None:
        """Finishes what another redrive has begun."""
        try:
            self._reopen(mark)
        except KafkaError as error:
            if error.code is not ErrorCode.fenced_state_epoch:
                raise
        self._write(partition, mark._replace(is_done=True))
        self.tally.resumed += _count(mark.offsets)

    def take(self, found: StoredLetter) -> None:
        key = found.partition, found.letter.topic, found.letter.partition
        batch = self._batches.setdefault(key, [])
        batch.append(found)
        self._bytes += len(found.message.value() or b"")
        if self._bytes > MAX_BATCH_BYTES:
            self.end()
        elif len(batch) >= self._size:
            self._flush(key)

    def end(self) -> None:
        for key in list(self._batches):
            self._flush(key)
        self._bytes = 0

    def _flush(self, key: BatchKey) -> None:
        letters = self._batches.pop(key)
        fate = self._sources.fate(key[1], key[2], letters)
        self.tally.lost += len(fate.lost)
        if fate.in_place:
            self._in_place(key, fate.in_place)
        if fate.from_copy:
            self._from_copy(key, fate.from_copy)
        self._pace()

    def _pace(self) -> None:
        if self._rate is not None:
            done = self.tally.in_place + self.tally.from_copy
            time.sleep(max(0.0, done / self._rate - (time.monotonic() - self._begun)))

    def _in_place(self, key: BatchKey, letters: Sequence[StoredLetter]) -> None:
        mark = _mark(self._group, key, letters)._replace(topic_id=self._sources.topic_id(key[1]))
        for _ in range(_TRIES):
            mark = mark._replace(generation=self._generation(mark))
            self._write(key[0], mark)
            try:
                opened = self._reopen(mark)
            except KafkaError as error:
                if error.code is not ErrorCode.fenced_state_epoch:
                    raise
                continue  # another client has changed the state, and this request had no effect
            self._write(key[0], mark._replace(is_done=True))
            self.tally.in_place += opened
            self.tally.unfinished += len(letters) - opened
            return
        raise CommandError(f"the state of group {self._group} for {key[1]}-{key[2]} changes all the time; try again")

    def _generation(self, mark: RedriveMark) -> str:
        arguments = {"group": mark.group, "limit": 1, "topic_id": mark.topic_id}
        found = command_to_leader(self._client, mark.topic, mark.partition, "deliveries", arguments)
        return str(found["generation"])

    def _reopen(self, mark: RedriveMark) -> int:
        """Returns how many records were opened. Raises FENCED_STATE_EPOCH if the generation is another one, and it is
        known that this is not because of this request."""
        arguments = {
            "group": mark.group,
            "topic_id": mark.topic_id or None,
            "ranges": mark.offsets,
            "generation": mark.generation,
        }
        problem = ""
        for number in range(_TRIES):
            time.sleep(number * _PAUSE_S)
            try:
                found = command_to_leader(
                    self._client, mark.topic, mark.partition, "reopen", arguments, may_repeat=False
                )
                return int(found["reopened"])
            except Unreachable as error:
                problem = str(error)
            except KafkaError as error:
                if error.code is ErrorCode.fenced_state_epoch and problem:
                    return _count(mark.offsets)
                if error.code is not ErrorCode.unknown_server_error:
                    raise
                problem = error.detail
            # Perhaps it was done. If not, it is done now; if it was, the generation is another one.
        raise CommandError(f"{problem}; run the command again, it finishes what it has begun")

    def _from_copy(self, key: BatchKey, letters: Sequence[StoredLetter]) -> None:
        self._producer.begin_transaction()
        for one in letters:
            message = one.message
            self._produce(key[1], key[2], message.key(), message.value(), original_headers(headers_of(message)))
        mark = _mark(self._group, key, letters)._replace(is_done=True)
        self._produce(self._topic, key[0], None, None, mark.headers())
        self._commit()
        self.tally.from_copy += len(letters)

    def _write(self, partition: int, mark: RedriveMark) -> None:
        self._producer.begin_transaction()
        self._produce(self._topic, partition, None, None, mark.headers())
        self._commit()

    def _produce(self, topic: str, partition: int, key: Any, value: Any, headers: Any) -> None:
        while True:
            try:
                self._producer.produce(topic, value, key, partition, headers=headers)
                return
            except BufferError:
                self._producer.poll(0.1)

    def _commit(self) -> None:
        try:
            self._producer.commit_transaction(_TIMEOUT_S)
        except KafkaException as error:
            raise CommandError(f"the redrive was not recorded: {reason(error)}; run the command again") from None


def _mark(group: str, key: BatchKey, letters: Sequence[StoredLetter]) -> RedriveMark:
    _, topic, partition = key
    offsets = ranges_of([one.letter.offset for one in letters])
    return RedriveMark(group, False, ranges_of([one.offset for one in letters]), topic, partition, offsets)


def ranges_of(numbers: Sequence[int]) -> list[tuple[int, int]]:
    """Returns the numbers as ranges, ascending; each number once."""
    found: list[tuple[int, int]] = []
    for number in sorted(set(numbers)):
        if found and found[-1][1] == number - 1:
            found[-1] = found[-1][0], number
        else:
            found.append((number, number))
    return found


def _count(ranges: Sequence[tuple[int, int]]) -> int:
    return sum(last - first + 1 for first, last in ranges)
