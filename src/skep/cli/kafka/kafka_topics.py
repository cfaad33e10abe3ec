"""``kafka-topics`` with Kafka's flags: create, list, describe, alter and delete topics."""

import argparse
import sys
from collections.abc import Collection

from skep.base.ids import TopicPartition
from skep.cli import output
from skep.cli.cluster.cluster_admin import Move, current_moves
from skep.cli.connection import Cluster, pairs, unknown_topic
from skep.cli.failures import CommandError, UsageError, run
from skep.cli.kafka.kafka_flags import KafkaFlags, cluster_from, topics_matching
from skep.cli.skep_client import skep_client
from skep.cli.topics import topic_admin

EXAMPLES = """\
  kafka-topics --create --bootstrap-server localhost:9092 --replication-factor 1 --partitions 1 --topic orders
  kafka-topics --list --bootstrap-server localhost:9092
  kafka-topics --describe --bootstrap-server localhost:9092 --topic orders
"""
ACTIONS = ("list", "describe", "create", "alter", "delete")
REPORTS = {
    "under_replicated_partitions": "only show under-replicated partitions",
    "unavailable_partitions": "only show partitions whose leader is not available",
    "under_min_isr_partitions": "only show partitions whose isr count is less than the configured minimum",
    "at_min_isr_partitions": "only show partitions whose isr count is equal to the configured minimum",
}
ALLOWED = {
    "config": ("create", "alter"),
    "delete_config": ("alter",),
    "partitions": ("create", "alter"),
    "replication_factor": ("create",),
    "replica_assignment": ("create", "alter"),
    "if_not_exists": ("create",),
    "if_exists": ("alter", "delete", "describe"),
    "exclude_internal": ("list", "describe"),
    "topics_with_overrides": ("describe",),
    "topic_id": ("describe",),
    **dict.fromkeys(REPORTS, ("describe",)),
}
"""The actions that each flag can be used with."""


def main() -> None:
    sys.exit(run("kafka-topics", lambda: execute(None)))


def _parser() -> KafkaFlags:
    parser = KafkaFlags("kafka-topics", "Create, delete, describe, or change a topic.", EXAMPLES)
    for action in ACTIONS:
        parser.add_argument(f"--{action}", action="store_true", help=f"{action} topics")
    parser.add_argument("--topic", help="the topic; a regular expression except with --create")
    parser.add_argument("--topic-id", help="the id of the topic to describe")
    parser.add_argument("--partitions", type=int, metavar="N", help="the number of partitions")
    parser.add_argument("--replication-factor", type=int, metavar="N", help="the number of replicas of each partition")
    parser.add_argument("--replica-assignment", metavar="1:2,2:3,...", help="the brokers of each partition")
    parser.add_argument("--config", action="append", metavar="NAME=VALUE", help="a topic config; repeatable")
    parser.add_argument(
        "--delete-config", action="append", metavar="NAME", help="reset a config to its default; repeatable"
    )
    parser.add_argument("--if-exists", action="store_true", help="do not fail if the topic does not exist")
    parser.add_argument("--if-not-exists", action="store_true", help="do not fail if the topic exists")
    parser.add_argument("--exclude-internal", action="store_true", help="exclude internal topics")
    parser.add_argument("--topics-with-overrides", action="store_true", help="only topics with overridden configs")
    for name, help_text in REPORTS.items():
        parser.add_argument(f"--{name.replace('_', '-')}", action="store_true", help=help_text)
    return parser


def execute(arguments: list[str] | None) -> None:
    flags = _parser().parse(arguments)
    actions = [action for action in ACTIONS if getattr(flags, action)]
    if len(actions) != 1:
        raise UsageError("Command must include exactly one action: --list, --describe, --create, --alter or --delete")
    _check(flags, actions[0])
    cluster = cluster_from(flags)
    {"list": _list, "describe": _describe, "create": _create, "alter": _alter, "delete": _delete}[actions[0]](
        cluster, flags
    )


def _check(flags: argparse.Namespace, action: str) -> None:
    for name, allowed in ALLOWED.items():
        if getattr(flags, name) not in (None, False) and action not in allowed:
            raise UsageError(f"--{name.replace('_', '-')} cannot be used with --{action}")
    if action in ("create", "alter", "delete") and flags.topic is None:
        raise UsageError(f"--topic is required with --{action}")
    if flags.partitions is not None and flags.partitions < 1:
        raise UsageError("The partitions must be greater than 0")
    if flags.replication_factor is not None and not 1 <= flags.replication_factor <= 32767:
        raise UsageError("The replication factor must be between 1 and 32767 inclusive")
    if action == "create" and flags.replica_assignment and (flags.partitions or flags.replication_factor):
        raise UsageError("--replica-assignment cannot be used with --partitions or --replication-factor")
    if action == "alter" and not (flags.partitions or flags.config or flags.delete_config):
        raise UsageError("--partitions is required with --alter")


def _create(cluster: Cluster, flags: argparse.Namespace) -> None:
    if "." in flags.topic or "_" in flags.topic:
        output.line(
            "WARNING: Due to limitations in metric names, topics with a period ('.') or underscore ('_') could "
            "collide. To avoid issues it is best to use either, but not both."
        )
    created = topic_admin.create_topic(
        cluster,
        flags.topic,
        partitions=flags.partitions or topic_admin.CLUSTER_DEFAULT,
        replication_factor=flags.replication_factor or topic_admin.CLUSTER_DEFAULT,
        configs=pairs(flags.config, "--config"),
        assignment=parse_assignment(flags.replica_assignment),
    )
    if created:
        output.line(f"Created topic {flags.topic}.")
    elif not flags.if_not_exists:
        raise CommandError(f"Topic '{flags.topic}' already exists.")


def parse_assignment(text: str | None) -> list[list[int]] | None:
    """Parses ``1:2,2:3``: the brokers of partition 0, then those of partition 1."""
    if not text:
        return None
    try:
        partitions = [[int(broker) for broker in part.split(":")] for part in text.split(",")]
    except ValueError:
        raise UsageError(f"'{text}' is not a replica assignment; expected one like 1:2,2:3") from None
    if any(len(set(brokers)) != len(brokers) or len(brokers) != len(partitions[0]) for brokers in partitions):
        raise UsageError(
            f"--replica-assignment {text}: all partitions must have the same number of replicas, and no broker twice"
        )
    return partitions


def _matching(cluster: Cluster, flags: argparse.Namespace, *, must_exist: bool) -> list[str]:
    names = topic_admin.topic_names(cluster)
    found = topics_matching(names, flags.topic)
    if must_exist and flags.topic and not found:
        raise unknown_topic(flags.topic, names)
    return [name for name in found if not (flags.exclude_internal and topic_admin.is_internal(name))]


def _list(cluster: Cluster, flags: argparse.Namespace) -> None:
    for name in _matching(cluster, flags, must_exist=False):
        output.line(name)


def _alter(cluster: Cluster, flags: argparse.Namespace) -> None:
    names = _matching(cluster, flags, must_exist=not flags.if_exists)
    for name in names:
        if flags.config or flags.delete_config:
            topic_admin.change_configs(cluster, name, pairs(flags.config, "--config"), flags.delete_config or ())
        if flags.partitions:
            assignment = parse_assignment(flags.replica_assignment)
            present = len(cluster.topic(name).partitions)
            topic_admin.add_partitions(cluster, [name], flags.partitions, assignment and assignment[present:])


def _delete(cluster: Cluster, flags: argparse.Namespace) -> None:
    if names := _matching(cluster, flags, must_exist=not flags.if_exists):
        topic_admin.delete_topics(cluster, names)


def _describe(cluster: Cluster, flags: argparse.Namespace) -> None:
    views = topic_admin.describe_topics(cluster, _matching(cluster, flags, must_exist=not flags.if_exists))
    if flags.topic_id is not None:
        views = [view for view in views if view.topic_id == flags.topic_id]
        if not views and not flags.if_exists:
            raise CommandError(f"TopicId '{flags.topic_id}' does not exist as expected")
    reports = [name for name in REPORTS if getattr(flags, name)]
    moves = _moves(cluster)
    live = set(cluster.metadata().brokers)
    for view in views:
        if not reports and (view.configs or not flags.topics_with_overrides):
            output.line(topic_row(view))
        for partition in [] if flags.topics_with_overrides else view.partitions:
            move = moves.get(TopicPartition(view.name, partition.partition))
            if not reports or any(is_reported(name, view, partition, move, live) for name in reports):
                output.line(partition_row(view, partition, move))


def _moves(cluster: Cluster) -> dict[TopicPartition, Move]:
    """Returns the moves in progress; none if the cluster does not tell, for example for lack of permission."""
    try:
        with skep_client(cluster) as client:
            return current_moves(client)
    except CommandError:
        return {}


def is_reported(
    report: str,
    view: topic_admin.TopicView,
    partition: topic_admin.PartitionView,
    move: Move | None,
    live: Collection[int],
) -> bool:
    in_sync = len(partition.isr)
    # A replica that a reassignment is adding does not make the partition under-replicated.
    wanted = len(partition.replicas) - (len(move.adding) if move else 0)
    return {
        "under_replicated_partitions": in_sync < wanted,
        "unavailable_partitions": partition.leader not in live,
        "under_min_isr_partitions": partition.leader is None or in_sync < view.min_insync_replicas,
        "at_min_isr_partitions": in_sync == view.min_insync_replicas,
    }[report]


def topic_row(view: topic_admin.TopicView) -> str:
    fields = [f"Topic: {view.name}"]
    if view.topic_id is not None:
        fields.append(f"TopicId: {view.topic_id}")
    fields.append(f"PartitionCount: {len(view.partitions)}")
    fields.append(f"ReplicationFactor: {view.replication_factor}")
    fields.append("Configs: " + ",".join(f"{name}={value}" for name, value in view.configs.items()))
    return "\t".join(fields)


def partition_row(view: topic_admin.TopicView, partition: topic_admin.PartitionView, move: Move | None = None) -> str:
    leader = "none" if partition.leader is None else partition.leader
    fields = [
        f"\tTopic: {view.name}",
        f"Partition: {partition.partition}",
        f"Leader: {leader}",
        "Replicas: " + ",".join(map(str, partition.replicas)),
        "Isr: " + ",".join(map(str, partition.isr)),
    ]
    if move is not None:
        fields.append("Adding Replicas: " + ",".join(map(str, move.adding)))
        fields.append("Removing Replicas: " + ",".join(map(str, move.removing)))
    return "\t".join([*fields, "Elr: N/A", "LastKnownElr: N/A"])
