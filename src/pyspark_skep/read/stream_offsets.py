"""The offsets of a stream as Spark keeps them in its checkpoint, and the losses between two of them.

    {"orders": {"id": "5e1c...", "0": 23, "1": 7}}
    {"orders": {"id": "5e1c...", "0": 23, "1": 7, "started at": {"0": 20, "1": 7}}}

This is the format of Spark's Kafka source with the topic's id added. A topic that was deleted and created again has
the same name and other records, and the offsets of one mean nothing in the other. Spark compares offsets as text, so
the order of keys is fixed.

Spark stores where each micro-batch ends, which is where the next one starts, but not where the first one starts. After
a restart it calls ``initialOffset`` again, whose result changes with retention or with ``latest``. So the end offsets
of the first micro-batch also hold its start ("started at").
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple
from uuid import UUID

from pyspark_skep.read.positions import STARTED_AT, TOPIC_ID
from skep.base.ids import TopicPartition, show_topic_id


class TopicOffsets(NamedTuple):
    topic_id: UUID
    offsets: dict[int, int]


class StreamOffsets(dict[str, TopicOffsets]):
    """The next offset to read for each partition, by topic.

    ``started_at`` is set only in the end offsets of a stream's first micro-batch. Comparisons ignore it.
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
        """Raises ValueError for offsets of another source. Those of Spark's Kafka source have no ids."""
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
                yield TopicPartition(topic, partition), offset

    def known(self, one: TopicPartition, topic_id: UUID) -> int | None:
        """Returns the offset of a partition if the topic has this id, and None otherwise."""
        entry = self.get(one.topic)
        return entry.offsets.get(one.partition) if entry is not None and entry.topic_id == topic_id else None

    def with_missing(self, start: "StreamOffsets") -> "StreamOffsets":
        """Returns these offsets with the topics and partitions added that only ``start`` has.

        A topic may be missing from a single response. If its position were dropped, all of it would be read again. If
        it was deleted, the entry does no harm.
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
        """Returns the same topics and partitions with other offsets."""
        return StreamOffsets(
            {
                topic: TopicOffsets(
                    entry.topic_id, {number: offsets[TopicPartition(topic, number)] for number in entry.offsets}
                )
                for topic, entry in self.items()
            }
        )


def _by_text(offsets: Mapping[int, int]) -> dict[str, int]:
    return {str(partition): offset for partition, offset in sorted(offsets.items())}


def _by_number(entries: Mapping[str, Any]) -> dict[int, int]:
    return {int(name): offset for name, offset in entries.items() if name not in (TOPIC_ID, STARTED_AT)}


def losses(start: StreamOffsets, latest: StreamOffsets) -> Iterator[str]:
    """Yields a sentence for each reason why records after ``start`` can no longer be read, compared with ``latest``."""
    for topic, was in start.items():
        now = latest.get(topic)
        if now is None:
            yield f"topic '{topic}' of the checkpoint was deleted, or this query does not read it"
        elif now.topic_id != was.topic_id:
            old_id, new_id = show_topic_id(was.topic_id), show_topic_id(now.topic_id)
            yield f"topic '{topic}' was deleted and created again (its id was {old_id}, it is {new_id})"
        else:
            for partition, offset in was.offsets.items():
                end = now.offsets.get(partition)
                if end is None:
                    yield f"{topic}-{partition} of the checkpoint does not exist, or this query does not read it"
                elif end < offset:
                    yield f"{topic}-{partition} was read up to offset {offset} and ends at {end} now"
