"""Where an asker reads a reply topic: one partition of it, from where its end was before the first request."""

import random
import time
from collections.abc import Mapping
from typing import Any

from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # it exports without saying so
    AdminClient,
    NewTopic,
    OffsetSpec,
)

from skep.client.errors import ClientError, Unreachable
from skep.queue.server_address import CONNECT_S, REQUEST_S

RETENTION_MS = 3_600_000
"""The retention of a reply topic that is created: longer than an asker waits for an answer."""
PAUSE_S = 0.05


def find_inbox(properties: Mapping[str, Any], topic: str) -> TopicPartition:
    """Returns a partition of the reply topic and the offset to read from. The topic is created if there is none.

    The offset is fixed here, so no answer to a later request is missed, however late the reading begins. With several
    partitions the askers spread over them, and each reads only a part of the answers to others.
    """
    admin = AdminClient(dict(properties))
    deadline = time.monotonic() + CONNECT_S
    while True:
        try:
            if partitions := _partitions(admin, topic):
                inbox = TopicPartition(topic, random.choice(partitions))
                latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
                end = admin.list_offsets({inbox: latest}, request_timeout=REQUEST_S)[inbox].result()
                return TopicPartition(topic, inbox.partition, end.offset)
            reason = "it has no leader"
        except KafkaException as error:
            reason = error.args[0].str()
            if not _is_passing(error.args[0]):
                raise ClientError(f"reply topic '{topic}': {reason}") from None
        if time.monotonic() > deadline:
            raise Unreachable(f"reply topic '{topic}' at {properties['bootstrap.servers']}: {reason}") from None
        time.sleep(PAUSE_S)


def _is_passing(error: KafkaError) -> bool:
    """A topic that was just created may have no leader yet, or be unknown to the broker that is asked."""
    return error.retriable() or error.code() in (
        KafkaError._TRANSPORT,
        KafkaError._TIMED_OUT,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError._UNKNOWN_PARTITION,
        KafkaError._UNKNOWN_TOPIC,
    )


def _partitions(admin: AdminClient, topic: str) -> list[int]:
    """Returns the partitions of the topic, none if it was created just now."""
    # All topics, because a request that names one could create it, with other options.
    found = admin.list_topics(timeout=CONNECT_S).topics.get(topic)
    if found is not None:
        return list(found.partitions)
    new = NewTopic(topic, num_partitions=-1, replication_factor=-1, config={"retention.ms": str(RETENTION_MS)})
    try:
        admin.create_topics([new], request_timeout=REQUEST_S)[topic].result()
    except KafkaException as error:
        if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
            raise
    return []
