"""``skep topics``: create, list, describe, alter and delete topics."""

import dataclasses
from typing import Annotated

import typer

from skep.cli import output
from skep.cli.connection import DEFAULT_BOOTSTRAP, Bootstrap, Properties, cluster_of, pairs
from skep.cli.failures import CommandError, UsageError
from skep.cli.output import Json
from skep.cli.topics import topic_admin

Name = Annotated[str, typer.Argument(metavar="TOPIC")]
Names = Annotated[list[str], typer.Argument(metavar="TOPIC")]
Partitions = Annotated[int | None, typer.Option("--partitions", "-p", min=1, metavar="N", help="Number of partitions.")]
Replicas = Annotated[
    int | None,
    typer.Option(
        "--replication-factor", "-r", min=1, max=32767, metavar="N", help="Number of replicas of each partition."
    ),
]
Configs = Annotated[
    list[str] | None, typer.Option("--config", "-c", metavar="NAME=VALUE", help="A topic config. Repeatable.")
]
IfExists = Annotated[bool, typer.Option("--if-exists", help="Do not fail if the topic does not exist.")]


def register(app: typer.Typer) -> None:
    topics = typer.Typer(
        no_args_is_help=True, rich_markup_mode=None, help="Create, list, describe, alter and delete topics."
    )
    for command in (create, list_topics, describe, alter, delete):
        topics.command(command.__name__.removesuffix("_topics"))(command)
    app.add_typer(topics, name="topics")


def create(
    name: Name,
    partitions: Partitions = None,
    replication_factor: Replicas = None,
    config: Configs = None,
    if_not_exists: Annotated[bool, typer.Option("--if-not-exists", help="Do not fail if the topic exists.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    properties: Properties = None,
) -> None:
    """Create a topic. Without options it gets the cluster's defaults.

    \b
    Examples:
      skep topics create orders --partitions 6
      skep topics create audit --config retention.ms=-1 --config flush.messages=1
    """
    created = topic_admin.create_topic(
        cluster_of(bootstrap, properties),
        name,
        partitions=partitions or topic_admin.CLUSTER_DEFAULT,
        replication_factor=replication_factor or topic_admin.CLUSTER_DEFAULT,
        configs=pairs(config, "--config"),
    )
    if created:
        output.line(f"Created topic {name}.")
    elif not if_not_exists:
        raise CommandError(f"topic '{name}' already exists")


def list_topics(
    internal: Annotated[bool, typer.Option("--internal", help="Show internal topics, too.")] = False,
    json: Json = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    properties: Properties = None,
) -> None:
    """List topics with their numbers of partitions and replicas.

    \b
    Examples:
      skep topics list
      skep topics list --json | jq -r '.[].topic'
    """
    topics = cluster_of(bootstrap, properties).metadata().topics
    rows = [
        (name, len(topic.partitions), max((len(p.replicas) for p in topic.partitions.values()), default=0))
        for name, topic in sorted(topics.items())
        if internal or not topic_admin.is_internal(name)
    ]
    if json:
        output.document([{"topic": name, "partitions": count, "replicas": many} for name, count, many in rows])
    elif rows:
        output.table(("topic", "partitions", "replicas"), rows, right=("partitions", "replicas"))
    else:
        output.note("There are no topics. To create one: skep topics create TOPIC")


def describe(
    names: Annotated[list[str] | None, typer.Argument(metavar="TOPIC")] = None,
    json: Json = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    properties: Properties = None,
) -> None:
    """Show the partitions, offsets and configs of topics.

    Without a name, all topics are shown. Only configs that differ from the default are listed. Latest is the log end
    offset: the offset of the next record. The column offsets is latest minus earliest. It counts every offset:
    committed records, but also records of open and aborted transactions, the markers that end transactions, and records
    that compaction has removed. So it can be more than the records that a consumer gets; skep consume TOPIC | wc -l
    counts those.

    \b
    Examples:
      skep topics describe orders
      skep topics describe orders payments --json
    """
    cluster = cluster_of(bootstrap, properties)
    views = topic_admin.describe_topics(cluster, names or topic_admin.topic_names(cluster), offsets=True)
    if json:
        output.document([_as_document(view) for view in views])
        return
    for number, view in enumerate(views):
        if number:
            output.line()
        _show(view)


def _as_document(view: topic_admin.TopicView) -> dict[str, object]:
    return {
        "topic": view.name,
        "topic_id": view.topic_id,
        "configs": view.configs,
        "partitions": [dataclasses.asdict(partition) for partition in view.partitions],
    }


def _show(view: topic_admin.TopicView) -> None:
    output.line(f"{view.name}  {output.count(len(view.partitions), 'partition')}  id {view.topic_id or '-'}")
    for name, value in sorted(view.configs.items()):
        output.line(f"  {name}={value}")
    numbers = ("partition", "leader", "earliest", "latest", "offsets")
    output.table(
        ("partition", "leader", "replicas", "isr", "earliest", "latest", "offsets"),
        (
            (p.partition, p.leader, _ids(p.replicas), _ids(p.isr), p.earliest, p.latest, _offsets_between(p))
            for p in view.partitions
        ),
        right=numbers,
    )


def _ids(brokers: list[int]) -> str:
    return ",".join(map(str, brokers))


def _offsets_between(partition: topic_admin.PartitionView) -> int | None:
    if partition.earliest is None or partition.latest is None:
        return None
    return partition.latest - partition.earliest


def alter(
    name: Name,
    partitions: Partitions = None,
    config: Configs = None,
    delete_config: Annotated[
        list[str] | None,
        typer.Option("--delete-config", metavar="NAME", help="Reset a config to its default. Repeatable."),
    ] = None,
    if_exists: IfExists = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    properties: Properties = None,
) -> None:
    """Add partitions to a topic, or change its configs.

    With more partitions, keys map to other partitions: new records with a key may go to another partition than the
    existing ones.

    \b
    Examples:
      skep topics alter orders --partitions 12
      skep topics alter orders --config retention.ms=3600000 --delete-config segment.bytes
    """
    set_to = pairs(config, "--config")
    if partitions is None and not set_to and not delete_config:
        raise UsageError("nothing to alter; use --partitions, --config or --delete-config")
    cluster = cluster_of(bootstrap, properties)
    if if_exists and name not in topic_admin.topic_names(cluster):
        return
    cluster.topic(name)
    if set_to or delete_config:
        topic_admin.change_configs(cluster, name, set_to, delete_config or ())
    if partitions is not None:
        topic_admin.add_partitions(cluster, [name], partitions)
    output.line(f"Altered topic {name}.")


def delete(
    names: Names,
    if_exists: IfExists = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    properties: Properties = None,
) -> None:
    """Delete topics with all their records. This cannot be undone.

    \b
    Examples:
      skep topics delete orders
      skep topics delete orders payments --if-exists
    """
    cluster = cluster_of(bootstrap, properties)
    known = topic_admin.topic_names(cluster)
    there = [name for name in names if name in known]
    if not if_exists and len(there) < len(names):
        cluster.topic(next(name for name in names if name not in known))
    if there:
        topic_admin.delete_topics(cluster, there)
    for name in there:
        output.line(f"Deleted topic {name}.")
