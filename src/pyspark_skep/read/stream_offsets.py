"""The offsets of a stream as Spark keeps them in its checkpoint, and what must have been lost between two of them.

    {"orders": {"id": "5e1c...", "0": 23, "1": 7}}
    {"orders": {"id": "5e1c...", "0": 23, "1": 7, "started at": {"0": 20, "1": 7}}}

This is the form of Spark's Kafka source, with the topic's id added: a topic that was deleted and created again has
the same name and other records, and offsets of the one mean nothing in the other. Spark compares offsets as text, so
the order of keys is always the same.

Spark keeps where each micro-batch ends, and so where the next one begins, but not where the first one does: it asks the
source again, which has other answers after retention, or at another ``latest``. So the end of the first one says it.
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple
from uuid import UUID

from pyspark_skep.read.positions import STARTED_AT, TOPIC_ID, TopicPartition


class TopicOffsets(NamedTuple):
    topic_id: UUID
    offsets: dict[int, int]


class StreamOffsets(dict[str, TopicOffsets]):
    """Topics with the offset of each of their partitions: the next to be read.

    ``started_at`` does not count when two are compared; it is there only for who ends a stream's first micro-batch.
    """

    started_at: "StreamOffsets | None" = None

    def to_json(self) -> dict[str, dict[str, Any]]:
        found: dict[str, dict[str, Any]] = {}
        for topic in sorted(self):
            found[topic] = {TOPIC_ID: str(self[topic].topic_id), **_by_text(self[topic].offsets)}
            if self.started_at is not None and topic in self.started_at:
                found[topic][STARTED_AT] = _by_text(self.started_at[topic].offsets)
        return found

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "StreamOffsets":
        """Raises ValueError for offsets that are of another source: those of the Kafka source have no ids."""
        found = cls()
        for topic, entries in value.items():
            if not isinstance(entries, dict) or TOPIC_ID not in entries:
                raise ValueError(
                    f"the checkpoint has offsets of another source (no id for topic '{topic}'): start with a new "
                    "checkpointLocation, and with startingOffsets where the old one ended"
                )
            topic_id = UUID(entries[TOPIC_ID])
            found[topic] = TopicOffsets(topic_id, _by_number(entries))
            if STARTED_AT in entries:
                if found.started_at is None:
                    found.started_at = cls()
                found.started_at[topic] = TopicOffsets(topic_id, _by_number(entries[STARTED_AT]))
        return found

    def partitions(self) -> Iterator[tuple[TopicPartition, int]]:
        for topic, entry in self.items():
            for partition, offset in entry.offsets.items():
                yield (topic, partition), offset

    def known(self, topic: str, topic_id: UUID, partition: int) -> int | None:
        """The offset of a partition, if it is of this very topic."""
        entry = self.get(topic)
        return entry.offsets.get(partition) if entry is not None and entry.topic_id == topic_id else None

    def with_missing(self, start: "StreamOffsets") -> "StreamOffsets":
        """With the topics and partitions of ``start`` that are not here, where they are there.

        A topic may be missing from one answer only. Where it was read up to must not be forgotten, or all of it would
        be read again; if it was deleted, that it is still named here does no harm.
        """
        found = StreamOffsets(self)
        for topic, was in start.items():
            now = self.get(topic)
            if now is None:
                found[topic] = was
            elif now.topic_id == was.topic_id:
                found[topic] = TopicOffsets(now.topic_id, was.offsets | now.offsets)
        return found

    def replaced(self, offsets: Mapping[TopicPartition, int]) -> "StreamOffsets":
        """The same topics and partitions with other offsets."""
        return StreamOffsets(
            {
                topic: TopicOffsets(entry.topic_id, {number: offsets[topic, number] for number in entry.offsets})
                for topic, entry in self.items()
            }
        )


def _by_text(offsets: Mapping[int, int]) -> dict[str, int]:
    return {str(partition): offset for partition, offset in sorted(offsets.items())}


def _by_number(entries: Mapping[str, Any]) -> dict[int, int]:
    return {int(name): offset for name, offset in entries.items() if name not in (TOPIC_ID, STARTED_AT)}


def losses(start: StreamOffsets, latest: StreamOffsets) -> Iterator[str]:
    """A sentence for each way in which records after ``start`` can no longer be read, by what there is now."""
    for topic, was in start.items():
        now = latest.get(topic)
        if now is None:
            yield f"topic '{topic}' of the checkpoint is not there any more, or not one that this query reads"
        elif now.topic_id != was.topic_id:
            yield f"topic '{topic}' was deleted and created again (its id was {was.topic_id}, it is {now.topic_id})"
        else:
            for partition, offset in was.offsets.items():
                end = now.offsets.get(partition)
                if end is None:
                    yield f"{topic}-{partition} of the checkpoint is not there, or not one that this query reads"
                elif end < offset:
                    yield f"{topic}-{partition} was read up to offset {offset} and ends at {end} now"
