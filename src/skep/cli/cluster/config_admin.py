"""Reads and changes the configs of brokers, topics and groups (DescribeConfigs, IncrementalAlterConfigs).

Skep's own client sends the requests: confluent-kafka's AdminClient cannot name all brokers, whose name is empty.
"""

import enum
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from skep.base.errors import ErrorCode
from skep.base.unknown_names import did_you_mean, no_such_topic
from skep.cli.failures import CommandError, UsageError
from skep.cli.skep_client import error_text
from skep.client.cluster_client import ClusterClient, Node
from skep.client.retry import call_with_retries
from skep.wire.apis import DESCRIBE_CONFIGS, INCREMENTAL_ALTER_CONFIGS

ALL_BROKERS = ""
_SET, _DELETE = 0, 1


class ResourceType(enum.IntEnum):
    TOPIC = 2
    BROKER = 4
    GROUP = 32


class Source(enum.IntEnum):
    """Where a value comes from, with Kafka's numbers and names. The lower one wins."""

    DYNAMIC_TOPIC_CONFIG = 1
    DYNAMIC_BROKER_CONFIG = 2
    DYNAMIC_DEFAULT_BROKER_CONFIG = 3
    STATIC_BROKER_CONFIG = 4
    DEFAULT_CONFIG = 5
    DYNAMIC_BROKER_LOGGER_CONFIG = 6
    DYNAMIC_CLIENT_METRICS_CONFIG = 7
    DYNAMIC_GROUP_CONFIG = 8


OWN_SOURCES = {
    ResourceType.TOPIC: Source.DYNAMIC_TOPIC_CONFIG,
    ResourceType.BROKER: Source.DYNAMIC_BROKER_CONFIG,
    ResourceType.GROUP: Source.DYNAMIC_GROUP_CONFIG,
}


class Resource(NamedTuple):
    """A topic, a group, a broker by its id, or with an empty name all brokers."""

    type: ResourceType
    name: str

    def __str__(self) -> str:
        if self == EVERY_BROKER:
            return "all brokers"
        return f"{self.type.name.lower()} {self.name}"

    @property
    def own_source(self) -> Source:
        return Source.DYNAMIC_DEFAULT_BROKER_CONFIG if self == EVERY_BROKER else OWN_SOURCES[self.type]


EVERY_BROKER = Resource(ResourceType.BROKER, ALL_BROKERS)


def broker(broker_id: int | None) -> Resource:
    """Returns one broker, or all of them for None."""
    return EVERY_BROKER if broker_id is None else Resource(ResourceType.BROKER, str(broker_id))


class Synonym(NamedTuple):
    """A value of one source, with the name that the config has there."""

    source: Source
    name: str
    value: str | None


class Config(NamedTuple):
    name: str
    value: str | None
    source: Source
    is_read_only: bool
    is_sensitive: bool
    synonyms: tuple[Synonym, ...]


def describe_configs(client: ClusterClient, resource: Resource, *, own_only: bool = False) -> list[Config]:
    """Returns the configs sorted by name; with ``own_only`` those set for the resource itself at run time."""
    body = {
        "resources": [
            {"resource_type": resource.type, "resource_name": resource.name, "configuration_keys": None},
        ],
        "include_synonyms": True,
    }
    [result] = _ask(client, resource, DESCRIBE_CONFIGS, body).results
    _check(result, resource, "describe")
    configs = (_config(row) for row in result.configs)
    return sorted(config for config in configs if not own_only or config.source is resource.own_source)


def _config(row: Any) -> Config:
    synonyms = tuple(Synonym(Source(s.source), s.name, s.value) for s in row.synonyms or ())
    return Config(row.name, row.value, Source(row.config_source), row.read_only, row.is_sensitive, synonyms)


def alter_configs(client: ClusterClient, resource: Resource, set_to: Mapping[str, str], unset: Iterable[str]) -> None:
    """Sets some configs and removes others. All of it is done, or nothing. Raises CommandError if it is refused."""
    unset = list(unset)
    if unset:
        # A broker accepts the removal of anything; a config that is not set is a mistake of the user.
        known = [config.name for config in describe_configs(client, resource, own_only=True)]
        for name in unset:
            if name not in known:
                raise CommandError(f"{name} is not set for {resource}{did_you_mean(name, known, most=1)}")
    changes = [{"name": name, "config_operation": _SET, "value": value} for name, value in set_to.items()]
    changes += [{"name": name, "config_operation": _DELETE, "value": None} for name in unset]
    row = {"resource_type": resource.type, "resource_name": resource.name, "configs": changes}
    body = {"resources": [row], "validate_only": False}
    [result] = _ask(client, resource, INCREMENTAL_ALTER_CONFIGS, body).responses
    _check(result, resource, "alter")


def _ask(client: ClusterClient, resource: Resource, api: Any, body: Mapping[str, Any]) -> Any:
    """Sends the request to the broker that it is about, or to the first one that answers."""

    def ask() -> Any:
        return client.ask_node(_node(client.nodes(), resource), api, body)

    return call_with_retries(client, f"the configs of {resource}", ask)


def _node(nodes: list[Node], resource: Resource) -> Node:
    if resource.type is not ResourceType.BROKER or resource == EVERY_BROKER:
        return nodes[0]
    for node in nodes:
        if str(node.node_id) == resource.name:
            return node
    running = ", ".join(str(node.node_id) for node in sorted(nodes))
    raise CommandError(f"broker {resource.name} is not running; the running brokers are {running}")


def _check(result: Any, resource: Resource, verb: str) -> None:
    if result.error_code is ErrorCode.none:
        return
    if result.error_code is ErrorCode.unknown_topic_or_partition:
        raise CommandError(no_such_topic(resource.name))
    problem = (result.error_message or error_text(result.error_code)).removesuffix(".")
    kind = UsageError if result.error_code is ErrorCode.invalid_config else CommandError
    raise kind(f"cannot {verb} the configs of {resource}: {problem}")
