"""The share partition that a command is about: its arguments ``group``, ``topic`` and ``partition``.

``topic_id`` is optional: it is that of the topic that the caller means. A topic that is deleted and created again has
the same name and other records.
"""

from collections.abc import Mapping
from typing import Any

from skep.base.errors import ErrorCode, KafkaError
from skep.broker.commands.command import Argument, number, text
from skep.broker.services import Services
from skep.coordination.group_ids import check_group_id
from skep.coordination.share.share_state import SharePartitionKey
from skep.replication.partition.partition import Partition

PLACE: dict[str, Argument] = {
    "group": text(),
    "topic": text(most=249),
    "partition": number(most=0x7FFF_FFFF),
    "topic_id": text(most=36, default=None),
}


def place_of(services: Services, arguments: Mapping[str, Any]) -> tuple[SharePartitionKey, Partition]:
    """Returns the share partition's key, and the partition, which this broker leads.

    Raises INVALID_GROUP_ID, UNKNOWN_TOPIC_OR_PARTITION, INCONSISTENT_TOPIC_ID, NOT_LEADER_OR_FOLLOWER and StorageError.
    """
    group, topic, index = arguments["group"], arguments["topic"], arguments["partition"]
    check_group_id(services.config.coordinator, group)
    partition = services.replicas.partition(topic, index)
    partition.check_leads()
    record = services.catalog.image.topics.get(topic)
    if record is None:
        raise KafkaError(ErrorCode.unknown_topic_or_partition, f"there is no topic {topic!r}")
    if arguments["topic_id"] not in (None, str(record.topic_id)):
        raise KafkaError(
            ErrorCode.inconsistent_topic_id,
            f"topic {topic!r} has the id {record.topic_id}, not {arguments['topic_id']}: it was created again",
        )
    return SharePartitionKey(group, record.topic_id, index), partition
