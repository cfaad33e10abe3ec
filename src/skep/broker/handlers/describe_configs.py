"""DescribeConfigs (API 32), versions 1 to 4.

Behaviour
    Returns the options of a topic, of this broker or of a group (which need not exist), or only those named, each with
    its value in force and the source of the value. On request also the values of all sources (synonyms) and the
    documentation. Unknown options are skipped. The broker with the empty name stands for all brokers: only what was set
    for all of them is listed. Options of Kafka that Skep does not use are described, read-only, if they were set.

    A resource that is named twice is described twice, as in Kafka.

Versions
    1 is the first with sources and synonyms (KIP-226).
    2 changes nothing here (quotas).
    3: types and documentation (KIP-569).
    4 is flexible.

Refusals, per resource
    INVALID_TOPIC_EXCEPTION, UNKNOWN_TOPIC_OR_PARTITION; INVALID_REQUEST for another broker, which has to be asked
    itself, and for other types of resources.

Left out
    Sensitive options: there are none.
"""

from collections.abc import Awaitable, Callable, Hashable, Mapping
from typing import TYPE_CHECKING, Any

from skep.base.errors import ErrorCode, KafkaError
from skep.base.loop.slicer import Work
from skep.broker.config.config_entries import (
    BROKER_RESOURCE,
    GROUP_RESOURCE,
    TOPIC_RESOURCE,
    ConfigEntry,
    broker_entries,
    check_config,
    default_broker_entries,
    owner_of,
    topic_entries,
    unsupported_resource,
)
from skep.broker.config.group_configs import check_group_name, group_entries
from skep.broker.refusals import message_of
from skep.broker.request import Request
from skep.broker.services import Services
from skep.metadata.cluster_image import CLUSTER_DEFAULT
from skep.metadata.topic_names import check_topic_name
from skep.wire.codec import Body
from skep.wire.lazy_array import LazyArray

if TYPE_CHECKING:
    from skep.wire.entities.request_types import DescribeConfigsRequest


def handle(services: Services, request: "Request[DescribeConfigsRequest]") -> Body | Awaitable[Body]:
    return services.slicer.run(_described_all(services, request))


def _described_all(services: Services, request: "Request[DescribeConfigsRequest]") -> Work[Body]:
    # A hundred thousand groups without overrides have the same description, which is made once.
    known: dict[Hashable, list[dict[str, Any]]] = {}
    results = []
    for resource in request.body.resources:
        result = _empty(resource, ErrorCode.none)
        try:
            check_config(request, resource.resource_type, resource.resource_name)
            overrides, entries = _resource(services, resource)
        except KafkaError as error:
            results.append({**result, "error_code": error.code, "error_message": message_of(error)})
            yield
            continue
        names = frozenset(resource.configuration_keys or ())
        key = (resource.resource_type, frozenset(overrides.items()), names)
        if key not in known:
            known[key] = _configs(request, entries(), names)
        results.append({**result, "configs": known[key]})
        yield
    return {"results": results}


def _configs(
    request: "Request[DescribeConfigsRequest]", entries: list[ConfigEntry], names: frozenset[str]
) -> list[dict[str, Any]]:
    with_synonyms = request.body.include_synonyms
    with_documentation = getattr(request.body, "include_documentation", False)
    return [
        _described(entry, with_synonyms, with_documentation)
        for entry in entries
        if not names or entry.option.name in names
    ]


def _resource(
    services: Services, resource: "DescribeConfigsRequest.Resource"
) -> tuple[Mapping[str, str], Callable[[], list[ConfigEntry]]]:
    """Returns the overrides of a resource, and a function that returns its entries.

    Resources of one type with the same overrides have the same entries.
    """
    name, image = resource.resource_name, services.catalog.image
    if resource.resource_type == TOPIC_RESOURCE:
        check_topic_name(name)
        topic = image.topics.get(name)
        if topic is None:
            raise KafkaError(ErrorCode.unknown_topic_or_partition, f"Topic '{name}' does not exist.")
        return topic.config, lambda: topic_entries(services, topic.config)
    if resource.resource_type == BROKER_RESOURCE:
        owner = owner_of(services, name)
        show = default_broker_entries if owner == CLUSTER_DEFAULT else broker_entries
        return {"": name}, lambda: show(services)
    if resource.resource_type == GROUP_RESOURCE:
        check_group_name(services, name)
        overrides = image.group_config(name)
        return overrides, lambda: group_entries(services, overrides)
    raise unsupported_resource(resource.resource_type)


def _described(entry: ConfigEntry, with_synonyms: bool, with_documentation: bool) -> dict[str, Any]:
    option = entry.option
    return {
        "name": option.name,
        "value": None if option.is_sensitive else entry.value,
        "read_only": not option.dynamic,
        "config_source": entry.source.value,
        "is_sensitive": option.is_sensitive,
        "synonyms": [
            {
                "name": synonym.name,
                "value": None if option.is_sensitive else synonym.value,
                "source": synonym.source.value,
            }
            for synonym in (entry.synonyms if with_synonyms else ())
        ],
        "config_type": option.type.value,
        "documentation": option.doc if with_documentation else None,
    }


def _empty(resource: "DescribeConfigsRequest.Resource", code: ErrorCode) -> dict[str, Any]:
    return {
        "error_code": code,
        "error_message": None,
        "resource_type": resource.resource_type,
        "resource_name": resource.resource_name,
        "configs": [],
    }


def refuse(request: "Request[DescribeConfigsRequest]", code: ErrorCode) -> Body:
    return {"results": LazyArray(request.body.resources, lambda resource: _empty(resource, code))}
