"""Identifiers as types of their own, so that they cannot be mixed up."""

from typing import NamedTuple, NewType
from uuid import UUID

Offset = NewType("Offset", int)
LeaderEpoch = NewType("LeaderEpoch", int)
BrokerId = NewType("BrokerId", int)
ProducerId = NewType("ProducerId", int)

NO_PRODUCER_ID = ProducerId(-1)
NO_TOPIC_ID = UUID(int=0)
"""In requests kio decodes it as None. No topic has it."""


class TopicPartition(NamedTuple):
    """One partition of one topic. Its text is the name of its directory: ``orders-3``."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


def show_topic_id(topic_id: UUID) -> str:
    """Returns the id as Kafka and its tools print it: ``ZTkT8dGSSfqKT6lHoKiTaQ``, in URL-safe base64."""
    import base64  # only needed for messages

    return base64.urlsafe_b64encode(topic_id.bytes).decode().rstrip("=")
