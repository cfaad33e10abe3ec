"""The internal topics of the coordinators, which are created when first needed, never by a client."""

from typing import NamedTuple

from skep.base.config.coordinator_config import (
    CONSUMER_OFFSETS,
    SHARE_GROUP_STATE,
    TRANSACTION_STATE,
    CoordinatorConfig,
)
from skep.base.errors import ErrorCode, KafkaError
from skep.broker.services import Services
from skep.broker.topics.topic_creation import alive_brokers, place
from skep.metadata.model import BrokerRecord

MAX_RECORD_BYTES = 5 << 20
"""The members of a group are in one record; some 15,000 of them fit."""


class _Shape(NamedTuple):
    partitions: int
    replication_factor: int
    segment_bytes: int


def _shape(name: str, config: CoordinatorConfig) -> _Shape:
    if name == CONSUMER_OFFSETS:
        return _Shape(
            config.offsets_topic_num_partitions,
            config.offsets_topic_replication_factor,
            config.offsets_topic_segment_bytes,
        )
    if name == TRANSACTION_STATE:
        return _Shape(
            config.transaction_topic_num_partitions,
            config.transaction_topic_replication_factor,
            config.transaction_topic_segment_bytes,
        )
    return _Shape(
        config.share_topic_num_partitions, config.share_topic_replication_factor, config.share_topic_segment_bytes
    )


async def ensure(services: Services, name: str) -> None:
    """Creates the topic if it does not exist. Of several brokers that try at once, one does.

    With fewer brokers than configured replicas, each broker gets a replica, and the controller adds the others when
    more brokers join. Kafka refuses until there are enough brokers; a single broker would then need changed options to
    serve groups.
    """
    if name in services.catalog.image.topics:
        return
    shape = _shape(name, services.config.coordinator)
    usable = [broker for broker in alive_brokers(services).values() if not _is_stopping(services, broker)]
    factor = min(shape.replication_factor, len(usable))
    if factor == 0:
        raise KafkaError(ErrorCode.coordinator_not_available, f"{name} cannot be created: all brokers are stopping")
    config = {"segment.bytes": str(shape.segment_bytes), "max.message.bytes": str(MAX_RECORD_BYTES)}
    if name == SHARE_GROUP_STATE:
        # An update is needed as well as the one before it, although both have one key. The coordinator deletes what it
        # no longer needs.
        min_isr = services.config.coordinator.share_topic_min_isr
        config |= {
            "cleanup.policy": "delete",
            "retention.ms": "-1",
            "retention.bytes": "-1",
            "min.insync.replicas": str(min_isr),
        }
    else:
        config["cleanup.policy"] = "compact"
    try:
        assignments = await services.slicer.finish(place(services, shape.partitions, factor))
        await services.catalog.create_topic(name, assignments, config)
    except KafkaError as error:
        if error.code is not ErrorCode.topic_already_exists:
            raise


def _is_stopping(services: Services, broker: BrokerRecord) -> bool:
    # The image has the current state of this broker too.
    return services.catalog.image.brokers.get(broker.id, broker).stopping
