"""Which topic the dead letters of a share group go to, and the conditions on it (KIP-1191)."""

from collections.abc import Callable
from typing import NamedTuple

from skep.base.config.share_config import ShareConfig
from skep.base.config.share_group_config import dead_letter_name_problem
from skep.base.config.topic_config import TopicConfig
from skep.metadata.cluster_image import ClusterImage
from skep.metadata.model import TopicRecord

GROUP_ENABLE = "errors.deadletterqueue.group.enable"
NEW_TOPIC = {GROUP_ENABLE: "true", "message.timestamp.type": "CreateTime"}
"""The options of a dead-letter topic that the broker creates, as in Kafka."""


class DeadLetterPartition(NamedTuple):
    topic: str
    partition: int
    max_message_bytes: int


class Unsuitable(Exception):
    """Dead letters cannot be written; the text says why and what to do. ``is_missing``: the topic does not exist."""

    def __init__(self, text: str, *, is_missing: bool = False) -> None:
        super().__init__(text)
        self.is_missing = is_missing


def dead_letter_partition(
    name: str,
    source: str,
    source_partition: int,
    image: ClusterImage,
    broker: ShareConfig,
    config_of: Callable[[TopicRecord], TopicConfig],
) -> DeadLetterPartition:
    """Returns the partition of the dead-letter topic for those of ``source``. Raises Unsuitable."""
    if (problem := dead_letter_name_problem(name, broker)) is not None:
        raise Unsuitable(f"errors.deadletterqueue.topic.name={name}: {problem}")
    if name == source:
        raise Unsuitable(f"topic {name} cannot have its own records as dead letters; name another topic")
    topic = image.topics.get(name)
    if topic is None:
        raise Unsuitable(
            f"the dead-letter topic {name} does not exist: create it with {GROUP_ENABLE}=true, or set "
            "errors.deadletterqueue.auto.create.topics.enable=true for the brokers",
            is_missing=True,
        )
    config = config_of(topic)
    if not config.dead_letter_group_enable:
        raise Unsuitable(f"topic {name} does not take dead letters: set {GROUP_ENABLE}=true for it")
    if config.is_compacted:
        raise Unsuitable(f"topic {name} is compacted and would lose dead letters: set cleanup.policy=delete for it")
    return DeadLetterPartition(name, source_partition % len(topic.partitions), config.max_message_bytes)
