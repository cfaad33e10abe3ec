"""Partitions named on a command line: ``orders`` is every partition of a topic, ``orders:0,2`` two of them."""

from collections.abc import Collection, Iterable, Sequence

from skep.base.ids import TopicPartition
from skep.cli.connection import Cluster
from skep.cli.failures import CommandError, UsageError


def parse_selection(text: str) -> tuple[str, list[int] | None]:
    """Returns the topic and its partitions; None stands for all partitions."""
    topic, colon, partitions = text.partition(":")
    if not topic:
        raise UsageError(f"'{text}' has no topic name; expected TOPIC or TOPIC:PARTITION,..., like orders:0,2")
    if not colon:
        return topic, None
    numbers = [part.strip() for part in partitions.split(",")]
    if not all(number.isascii() and number.isdecimal() for number in numbers):
        raise UsageError(f"'{text}' is not TOPIC:PARTITION,..., like orders:0,2")
    return topic, sorted({int(number) for number in numbers})


def unknown_partition(topic: str, partition: int, known: Collection[int]) -> CommandError:
    return CommandError(f"topic '{topic}' has no partition {partition}; its partitions are 0 to {max(known)}")


def partitions_of(cluster: Cluster, topic: str, wanted: Sequence[int] = ()) -> list[int]:
    """Returns the wanted partitions, or all. Raises CommandError for a topic or partition that does not exist."""
    known = sorted(cluster.topic(topic).partitions)
    for partition in wanted:
        if partition not in known:
            raise unknown_partition(topic, partition, known)
    return sorted(set(wanted)) or known


def selected_partitions(cluster: Cluster, selections: Iterable[str]) -> list[TopicPartition]:
    """Returns the partitions of all selections, in order. Raises CommandError for one that does not exist."""
    found = set()
    for text in selections:
        topic, partitions = parse_selection(text)
        found |= {TopicPartition(topic, number) for number in partitions_of(cluster, topic, partitions or ())}
    return sorted(found)
