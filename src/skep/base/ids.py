"""Identifiers as types of their own, so that they cannot be mixed up."""

from typing import NamedTuple, NewType

Offset = NewType("Offset", int)
LeaderEpoch = NewType("LeaderEpoch", int)
BrokerId = NewType("BrokerId", int)
ProducerId = NewType("ProducerId", int)

NO_PRODUCER_ID = ProducerId(-1)


class TopicPartition(NamedTuple):
    """One partition of one topic. Its text is the name of its directory: ``orders-3``."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"
