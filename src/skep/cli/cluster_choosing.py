"""What the commands on a cluster share: the partitions and brokers that were named, and the answer when some refuse."""

from collections.abc import Iterable, Sequence
from typing import Annotated

import typer

from skep.base.ids import TopicPartition
from skep.cli import output
from skep.cli.cluster.cluster_admin import Refusal, by_topic
from skep.cli.cluster.cluster_state import ClusterState
from skep.cli.connection import unknown_topic
from skep.cli.failures import CommandError
from skep.cli.groups.reset_plan import parse_scope

SHOWN_REFUSALS = 20
Topics = Annotated[
    list[str] | None, typer.Option("--topic", "-t", metavar="TOPIC[:PARTITION,...]", help="Of which. Repeatable.")
]


def brokers_there(state: ClusterState, brokers: Sequence[int]) -> Sequence[int]:
    if missing := [str(broker) for broker in brokers if broker not in state.places]:
        there = ", ".join(map(str, state.places))
        raise CommandError(f"there is no broker {', '.join(missing)}; there are {there}")
    return brokers


def partitions_in(state: ClusterState, topics: Iterable[str] | None) -> list[TopicPartition]:
    """All, or those that ``orders`` or ``orders:0,2`` mean; one that is not there is a CommandError."""
    if not topics:
        return [partition.where for partition in state.partitions]
    known = by_topic(partition.where for partition in state.partitions)
    found = set()
    for text in topics:
        topic, numbers = parse_scope(text)
        if topic not in known:
            raise unknown_topic(topic, known)
        for number in known[topic] if numbers is None else numbers:
            if number not in known[topic]:
                raise CommandError(f"topic '{topic}' has no partition {number}")
            found.add(TopicPartition(topic, number))
    return sorted(found)


def refuse(refused: Sequence[Refusal], asked: int) -> None:
    """CommandError with the first refusal, when there are any; the others are lines before it."""
    for refusal in refused[1:SHOWN_REFUSALS]:
        output.note(f"{refusal.where}: {refusal.words}")
    if refused:
        first = refused[0]
        raise CommandError(
            f"{len(refused)} of {output.count(asked, 'partition')} refused: {first.where}: {first.words}"
        )
