"""``kafka-configs`` with Kafka's flags: describe and alter the configs of topics, brokers and groups.

The configs of users, clients and addresses are quotas (``kafka_quotas.py``), and those of users also SCRAM credentials
(``kafka_users.py``).

Left out
    Loggers and client metrics, which have no configs in Skep. The controller is reached through any broker, so there is
    no ``--bootstrap-controller``.
"""

import argparse
import re
import sys

from skep.cli import output
from skep.cli.cluster.config_admin import (
    ALL_BROKERS,
    EVERY_BROKER,
    Config,
    Resource,
    ResourceType,
    alter_configs,
    describe_configs,
)
from skep.cli.command_config import read_properties
from skep.cli.connection import Cluster
from skep.cli.failures import UsageError, run
from skep.cli.groups.group_admin import list_groups
from skep.cli.kafka import kafka_quotas
from skep.cli.kafka.kafka_flags import KafkaFlags, cluster_from
from skep.cli.kafka.kafka_quotas import DEFAULT_ENTITY
from skep.cli.skep_client import skep_client
from skep.client.cluster_client import ClusterClient

EXAMPLES = """\
  kafka-configs --bootstrap-server localhost:9092 --describe --entity-type topics --entity-name orders
  kafka-configs --bootstrap-server localhost:9092 --alter --entity-type topics --entity-name orders \\
      --add-config retention.ms=3600000,cleanup.policy=[compact,delete]
  kafka-configs --bootstrap-server localhost:9092 --alter --entity-type brokers --entity-default \\
      --add-config num.partitions=3
  kafka-configs --bootstrap-server localhost:9092 --describe --entity-type brokers --entity-name 1 --all
  kafka-configs --bootstrap-server localhost:9092 --alter --entity-type users --entity-name alice \\
      --entity-type clients --entity-default --add-config producer_byte_rate=1048576
  kafka-configs --bootstrap-server localhost:9092 --alter --entity-type users --entity-name alice \\
      --add-config 'SCRAM-SHA-512=[iterations=8192,password=secret]'
"""
ENTITY_TYPES = {"topics": ResourceType.TOPIC, "brokers": ResourceType.BROKER, "groups": ResourceType.GROUP}
UNSUPPORTED_TYPES = ("broker-loggers", "client-metrics")
SHORT_FLAGS = {"topic": "topics", "broker": "brokers", "group": "groups"}
# A comma or equal sign inside square brackets belongs to the value: cleanup.policy=[compact,delete].
_OUTSIDE_BRACKETS = r"(?=[^\]]*(?:\[|$))"
_COMMA, _EQUALS = re.compile("," + _OUTSIDE_BRACKETS), re.compile(r"\s*=\s*" + _OUTSIDE_BRACKETS)


def main() -> None:
    sys.exit(run("kafka-configs", lambda: execute(None)))


def _parser() -> KafkaFlags:
    about = "Describe and alter the configs of topics, brokers and groups, and the quotas of clients."
    parser = KafkaFlags("kafka-configs", about, EXAMPLES)
    parser.add_argument("--describe", action="store_true", help="list the configs of an entity, or of all of a type")
    parser.add_argument("--alter", action="store_true", help="change the configs of an entity")
    types = ", ".join((*ENTITY_TYPES, *kafka_quotas.ENTITY_TYPES))
    parser.add_argument("--entity-type", action="append", metavar="TYPE", help=f"one of {types}; users also + clients")
    parser.add_argument(
        "--entity-name", action="append", metavar="NAME", help="the topic, id of the broker, group, user, client or ip"
    )
    parser.add_argument(
        "--entity-default",
        action="append_const",
        dest="entity_name",
        const=DEFAULT_ENTITY,
        help="the configs of all brokers, or the quotas of all users, clients or ips",
    )
    kafka_quotas.add_flags(parser)
    for flag, entity_type in SHORT_FLAGS.items():
        parser.add_argument(f"--{flag}", metavar="NAME", help=f"short for --entity-type {entity_type} --entity-name")
    parser.add_argument("--broker-defaults", action="store_true", help="short for brokers and --entity-default")
    parser.add_argument(
        "--add-config", metavar="NAME=VALUE,...", help="configs to set; a value with commas in square brackets"
    )
    parser.add_argument("--add-config-file", metavar="FILE", help="a file of configs to set, one NAME=VALUE per line")
    parser.add_argument("--delete-config", action="append", metavar="NAME,...", help="configs to remove; repeatable")
    parser.add_argument("--all", action="store_true", help="with --describe: all configs, also defaults")
    parser.add_argument("--force", action="store_true", help=argparse.SUPPRESS)
    return parser


def execute(arguments: list[str] | None) -> None:
    flags = _parser().parse(arguments)
    if flags.describe == flags.alter:
        raise UsageError("Command must include exactly one action: --describe, --alter")
    if flags.describe and (flags.add_config or flags.add_config_file or flags.delete_config):
        raise UsageError("--add-config and --delete-config cannot be used with --describe")
    if flags.alter and flags.all:
        raise UsageError("--all cannot be used with --alter")
    if kafka_quotas.are_asked_for(flags):
        kafka_quotas.execute(flags, configs_to_add(flags), configs_to_delete(flags))
        return
    entity_type, name = entity_of(flags)
    cluster = cluster_from(flags)
    if flags.alter:
        _alter(cluster, flags, entity_type, name)
        return
    with skep_client(cluster) as client:
        _describe(cluster, client, entity_type, name, every=flags.all)


def entity_of(flags: argparse.Namespace) -> tuple[str, str | None]:
    """Returns the type and the name of the entity: empty for the default of all brokers, None if none is given."""
    entity_type, name = _type_and_name(flags)
    if entity_type is None:
        raise UsageError("--entity-type must be specified")
    if entity_type in UNSUPPORTED_TYPES:
        raise UsageError(f"--entity-type {entity_type}: only {', '.join(ENTITY_TYPES)} have configs here")
    if entity_type not in ENTITY_TYPES:
        known = ", ".join((*ENTITY_TYPES, *kafka_quotas.ENTITY_TYPES))
        raise UsageError(f"Invalid entity type {entity_type}, the entity type must be one of {known}")
    if name == DEFAULT_ENTITY:
        if entity_type != "brokers":
            raise UsageError("--entity-default can only be used with brokers, users, clients and ips, without a name")
        return entity_type, ALL_BROKERS
    if entity_type == "brokers" and name is not None and not name.isdecimal():
        raise UsageError(f"The entity name for brokers must be a valid integer broker id, found: {name}")
    return entity_type, name


def _type_and_name(flags: argparse.Namespace) -> tuple[str | None, str | None]:
    for values, flag in ((flags.entity_type, "--entity-type"), (flags.entity_name, "--entity-name")):
        if values is not None and len(values) > 1:
            raise UsageError(f"{flag} can be repeated only for users and clients")
    [entity_type], [name] = flags.entity_type or [None], flags.entity_name or [None]
    for flag, plural in SHORT_FLAGS.items():
        if (given := getattr(flags, flag)) is not None:
            if name is not None or entity_type not in (None, plural):
                raise UsageError(f"--{flag} cannot be used with --entity-name or another --entity-type")
            entity_type, name = plural, given
    if flags.broker_defaults:
        if name is not None:
            raise UsageError("--broker-defaults cannot be used with --entity-name or --entity-default")
        entity_type, name = entity_type or "brokers", DEFAULT_ENTITY
    return entity_type, name


def configs_to_add(flags: argparse.Namespace) -> dict[str, str]:
    if flags.add_config and flags.add_config_file:
        raise UsageError("--add-config and --add-config-file cannot be specified together")
    if flags.add_config_file:
        return read_properties(flags.add_config_file)
    configs = {}
    for pair in _COMMA.split(flags.add_config) if flags.add_config else ():
        parts = _EQUALS.split(pair)
        if len(parts) != 2:
            raise UsageError('Invalid entity config: all configs to be added must be in the format "key=val"')
        configs[parts[0].strip()] = re.sub(r"[\[\]]", "", parts[1]).strip()
    return configs


def configs_to_delete(flags: argparse.Namespace) -> list[str]:
    return [part.strip() for text in flags.delete_config or () for part in text.split(",") if part.strip()]


def _alter(cluster: Cluster, flags: argparse.Namespace, entity_type: str, name: str | None) -> None:
    if name is None:
        raise UsageError("An entity name must be specified with --alter")
    set_to = configs_to_add(flags)
    unset = configs_to_delete(flags)
    if not set_to and not unset:
        raise UsageError("At least one of --add-config, --add-config-file or --delete-config must be specified")
    with skep_client(cluster) as client:
        alter_configs(client, Resource(ENTITY_TYPES[entity_type], name), set_to, unset)
    if name == ALL_BROKERS:
        output.line(f"Completed updating default config for {entity_type} in the cluster.")
    else:
        output.line(f"Completed updating config for {entity_type.removesuffix('s')} {name}.")


def _describe(cluster: Cluster, client: ClusterClient, entity_type: str, name: str | None, *, every: bool) -> None:
    for one in [name] if name is not None else _names(cluster, client, entity_type):
        resource = Resource(ENTITY_TYPES[entity_type], one)
        configs = describe_configs(client, resource, own_only=not every)
        if resource == EVERY_BROKER:
            output.line(f"Default configs for {entity_type} in the cluster are:")
        else:
            output.line(f"{'All' if every else 'Dynamic'} configs for {entity_type.removesuffix('s')} {one} are:")
        for config in configs:
            output.line(config_row(config))


def _names(cluster: Cluster, client: ClusterClient, entity_type: str) -> list[str]:
    if entity_type == "topics":
        return sorted(cluster.metadata().topics)
    if entity_type == "groups":
        return [listing.group for listing in list_groups(cluster)]
    return [*(str(node.node_id) for node in sorted(client.nodes())), ALL_BROKERS]


def config_row(config: Config) -> str:
    synonyms = ", ".join(f"{one.source.name}:{one.name}={one.value}" for one in config.synonyms)
    sensitive = str(config.is_sensitive).lower()
    return f"  {config.name}={config.value} sensitive={sensitive} synonyms={{{synonyms}}}"
