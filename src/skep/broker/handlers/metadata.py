"""Metadata (API 3), versions 0 to 13.

Behaviour
    Returns the brokers, and the leaders and replicas of the named topics. Null topics (in version 0: an empty list)
    mean all topics. A topic that is named twice is in the response once. If topics are named, the brokers include those
    that left a moment ago (``cluster/departed_brokers.py``), though none of them leads.

    A topic that does not exist is created if ``auto.create.topics.enable`` and the request (before version 4: always)
    allow it. For a client of another machine somebody must have set the option. The topic is complete in the response
    and can be written to at once; Kafka returns LEADER_NOT_AVAILABLE first and lets the client ask again. One request
    creates at most ``skep.max.auto.created.topics`` topics; the others get LEADER_NOT_AVAILABLE.

    The controller is the broker that elects leaders. Clients send it requests that change topics; any other broker
    handles them too.

Versions
    1: null topics mean all, an empty list none; racks, the controller, whether a topic is internal.
    2: cluster id (KIP-78).
    3: ``throttle_time_ms``.
    4: ``allow_auto_topic_creation``.
    5: offline replicas (KIP-112).
    6 changes nothing here (quotas).
    7: leader epochs (KIP-320).
    8: authorised operations of topics and of the cluster (KIP-430).
    9 is flexible.
    10: topic ids in the response (KIP-516); versions 10 and 11 have them in the request too, but must not use them.
    11: without the authorised operations of the cluster, which DescribeCluster has (KIP-700).
    12: topics named by id (KIP-516).
    13: an error code for the whole request (KIP-1102).

Refusals, per topic, in order
    INVALID_REQUEST for all when versions 10 and 11 name a topic by id, as in Kafka; UNKNOWN_TOPIC_ID;
    TOPIC_AUTHORIZATION_FAILED; INVALID_TOPIC_EXCEPTION; the errors of auto-creation (LEADER_NOT_AVAILABLE while the
    metadata store fails); UNKNOWN_TOPIC_OR_PARTITION.

Left out
    Auto-creation of internal topics: with the default options they would be useless to the coordinators.
"""

import logging
from collections.abc import Awaitable, Iterable
from typing import TYPE_CHECKING, Any
from uuid import UUID

from skep.base.errors import ErrorCode, KafkaError, StoreUnavailable, VersionConflict
from skep.base.loop.slicer import Work
from skep.broker import authorized_operations
from skep.broker.permissions import TOPIC, allowed, is_visible, may_create_topic
from skep.broker.request import Request
from skep.broker.services import Services
from skep.broker.topics.current_leaders import brokers_at, controller_id
from skep.broker.topics.mutation_quota import count_mutations
from skep.broker.topics.topic_creation import INTERNAL_TOPICS, auto_create, describe_partitions
from skep.metadata.cluster_image import CLUSTER_DEFAULT
from skep.metadata.topic_names import is_topic_name
from skep.security.access import refusal
from skep.wire.codec import Body
from skep.wire.lazy_array import LazyArray

if TYPE_CHECKING:
    from skep.wire.entities.request_types import MetadataRequest

logger = logging.getLogger(__name__)

PARTITIONS_AT_ONCE = 64
ALL_IS_NULL = 1
HAS_TOPIC_ID = 12

TopicKey = str | UUID


def handle(services: Services, request: "Request[MetadataRequest]") -> Body | Awaitable[Body]:
    wanted = _wanted(request)
    if wanted is None:
        return services.slicer.run(_all_described(services, request))
    refused: dict[TopicKey, ErrorCode] = {}
    if request.access.is_limited:
        refused = _refusals(services, request, wanted)
    if _may_create(services, request) and getattr(request.body, "allow_auto_topic_creation", True):
        topics = services.catalog.image.topics
        missing = [
            key
            for key in wanted
            if isinstance(key, str) and key not in topics and key not in INTERNAL_TOPICS and key not in refused
        ]
        if missing:
            return _created_and_described(services, request, wanted, missing, refused)
    return services.slicer.run(_described(services, request, wanted, refused))


def _all_described(services: Services, request: "Request[MetadataRequest]") -> Work[Body]:
    names: Iterable[TopicKey] = services.catalog.image.topics
    if request.access.is_limited:
        visible = []
        for name in services.catalog.image.topics:
            if is_visible(request, TOPIC, name):
                visible.append(name)
            yield
        names = visible
    body = yield from _described(services, request, names, {})
    return body


def _refusals(
    services: Services, request: "Request[MetadataRequest]", wanted: Iterable[TopicKey]
) -> dict[TopicKey, ErrorCode]:
    """Returns the topics that the client may not describe, whether they exist or not."""
    refused: dict[TopicKey, ErrorCode] = {}
    for key in wanted:
        name = key
        if isinstance(key, UUID):
            topic = services.catalog.image.topics_by_id.get(key)
            if topic is None:
                continue
            name = topic.name
        if not allowed(request, TOPIC, str(name)):
            refused[key] = ErrorCode.topic_authorization_failed
    return refused


def _may_create(services: Services, request: "Request[MetadataRequest]") -> bool:
    if not services.config.auto_create_topics_enable:
        return False
    if request.connection is None or request.connection.is_local:
        return True
    # A mistyped name of anybody on the network would make a topic. Whoever wants that has said so.
    image = services.catalog.image
    given = (services.static_config, image.broker_config(CLUSTER_DEFAULT), image.broker_config(services.node.id))
    return any("auto.create.topics.enable" in texts for texts in given)


def _wanted(request: "Request[MetadataRequest]") -> Iterable[TopicKey] | None:
    """Returns the named topics, each once, in the order of the request; None for all topics."""
    topics = request.body.topics
    if topics is None or (not topics and request.version < ALL_IS_NULL):
        return None
    keys: dict[TopicKey, None] = {}
    for topic in topics:
        topic_id = getattr(topic, "topic_id", None)
        if request.version < HAS_TOPIC_ID and (topic.name is None or topic_id is not None):
            raise KafkaError(ErrorCode.invalid_request, f"version {request.version} needs topic names, not ids")
        if topic_id is not None:
            keys[topic_id] = None
        elif topic.name is not None:
            keys[topic.name] = None
        else:
            raise KafkaError(ErrorCode.invalid_request, "a topic has neither name nor id")
    return keys


async def _created_and_described(
    services: Services,
    request: "Request[MetadataRequest]",
    wanted: Iterable[TopicKey],
    missing: list[str],
    refused: dict[TopicKey, ErrorCode],
) -> Body:
    most = services.config.max_auto_created_topics
    # The client asks again for these; other requests are handled in between.
    refused |= dict.fromkeys(missing[most:], ErrorCode.leader_not_available)
    for name in missing[:most]:
        try:
            if not may_create_topic(request, name):
                raise refusal(TOPIC)
            count_mutations(services, request, services.config.num_partitions)
            await auto_create(services, name)
        except KafkaError as error:
            refused[name] = error.code
            logger.debug("topic %s was not created: %s", name, error)
        except (StoreUnavailable, VersionConflict) as error:
            refused[name] = ErrorCode.leader_not_available
            logger.warning("topic %s was not created: %s", name, error)
    return await services.slicer.finish(_described(services, request, wanted, refused))


def _described(
    services: Services,
    request: "Request[MetadataRequest]",
    wanted: Iterable[TopicKey],
    refused: dict[TopicKey, ErrorCode],
) -> Work[Body]:
    image = services.catalog.image
    alive = brokers_at(services, request.listener_name)
    are_operations_asked = getattr(request.body, "include_topic_authorized_operations", False)
    topics: list[dict[str, Any]] = []
    for key in wanted:
        topic = image.topics_by_id.get(key) if isinstance(key, UUID) else image.topics.get(key)
        operations = authorized_operations.NOT_ASKED
        if are_operations_asked and key not in refused:
            name = key if topic is None else topic.name
            operations = authorized_operations.operations_on(request.access, TOPIC, str(name))
        if topic is None or key in refused:
            topics.append({**_missing(key, refused), "topic_authorized_operations": operations})
            yield
            continue
        partitions: list[dict[str, Any]] = []
        for start in range(0, len(topic.partitions), PARTITIONS_AT_ONCE):
            some = topic.partitions[start : start + PARTITIONS_AT_ONCE]
            partitions += describe_partitions(enumerate(some, start), alive)
            yield
        topics.append(
            {
                "error_code": ErrorCode.none,
                "name": topic.name,
                "topic_id": topic.topic_id,
                "is_internal": topic.name in INTERNAL_TOPICS,
                "partitions": partitions,
                "topic_authorized_operations": operations,
            }
        )
    cluster_operations = authorized_operations.NOT_ASKED
    if getattr(request.body, "include_cluster_authorized_operations", False):
        cluster_operations = authorized_operations.operations_on_cluster(request.access)
    # Producers and consumers name topics; a request about the cluster names none.
    departed = services.departed.recent() if request.body.topics else ()
    listed = (*alive.values(), *(left for left in departed if left.id not in alive))
    if departed and request.listener_name:
        listed = tuple(found for broker in listed if (found := broker.at(request.listener_name)) is not None)
    return {
        "brokers": [
            {"node_id": broker.id, "host": broker.host, "port": broker.port, "rack": broker.rack} for broker in listed
        ],
        "cluster_id": image.cluster_id,
        "controller_id": controller_id(services),
        "topics": topics,
        "cluster_authorized_operations": cluster_operations,
        "error_code": ErrorCode.none,
    }


def _missing(key: TopicKey, refused: dict[TopicKey, ErrorCode]) -> dict[str, Any]:
    if isinstance(key, UUID):
        return {"error_code": refused.get(key, ErrorCode.unknown_topic_id), "name": None, "topic_id": key}
    code = ErrorCode.unknown_topic_or_partition if is_topic_name(key) else ErrorCode.invalid_topic_exception
    return {"error_code": refused.get(key, code), "name": key, "is_internal": key in INTERNAL_TOPICS}


def refuse(request: "Request[MetadataRequest]", code: ErrorCode) -> Body:
    def topic(named: "MetadataRequest.Topic") -> dict[str, Any]:
        return {
            "error_code": code,
            # Before version 12 the name cannot be null in the response.
            "name": named.name if request.version >= HAS_TOPIC_ID else named.name or "",
            "topic_id": getattr(named, "topic_id", None),
        }

    return {"error_code": code, "topics": LazyArray(request.body.topics or (), topic)}
