"""What ``skep queues`` shows of a share group: its state, its options, and each of its partitions."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from skep.base.ids import TopicPartition
from skep.cli.cluster.config_admin import Config, Resource, ResourceType, describe_configs
from skep.cli.connection import Cluster
from skep.cli.failures import CommandError
from skep.cli.groups.group_admin import unknown_group
from skep.cli.groups.group_views import GroupView
from skep.cli.groups.share_deliveries import Deliveries, find_deliveries
from skep.cli.groups.share_group_admin import ShareOffset, find_share_groups, list_share_groups, offsets_by
from skep.client.cluster_client import ClusterClient

DEAD_LETTER_TOPIC = "errors.deadletterqueue.topic.name"


@dataclass(frozen=True)
class QueuePartition:
    """``deliveries`` is None if the partition has no leader, or if its broker is not Skep's."""

    where: TopicPartition
    offset: ShareOffset
    deliveries: Deliveries | None

    @property
    def problem(self) -> str | None:
        return None if self.deliveries is None else self.deliveries.problem

    def in_flight(self, what: str) -> int | None:
        """Returns a number of ``Deliveries``; None if it is not known."""
        return None if self.deliveries is None else getattr(self.deliveries, what)


@dataclass(frozen=True)
class Queue:
    view: GroupView
    partitions: list[QueuePartition]
    options: list[Config]
    """Those that are set for the group."""

    @property
    def topics(self) -> list[str]:
        return sorted({partition.where.topic for partition in self.partitions})

    @property
    def lag(self) -> int:
        return sum(max(0, partition.offset.lag or 0) for partition in self.partitions)

    @property
    def dead_letter_topic(self) -> str | None:
        return next((option.value for option in self.options if option.name == DEAD_LETTER_TOPIC), None) or None

    def total(self, what: str) -> int | None:
        """Returns the sum over the partitions; None if it is not known of one of them."""
        numbers = [partition.in_flight(what) for partition in self.partitions]
        return None if None in numbers else sum(number for number in numbers if number is not None)


def all_queues(cluster: Cluster, client: ClusterClient) -> list[Queue]:
    """Returns the share groups, sorted by name."""
    names = [listing.group for listing in list_share_groups(cluster)]
    return [_queue(client, view) for view in find_share_groups(cluster, names).values() if view is not None]


def find_queue(cluster: Cluster, client: ClusterClient, group: str, *, with_runs: bool = True) -> Queue:
    """Returns one share group. Raises CommandError if there is none of this name."""
    view = find_share_groups(cluster, [group])[group]
    if view is None:
        raise _no_queue(group, (listing.group for listing in list_share_groups(cluster)))
    return _queue(client, view, with_runs=with_runs)


def check_queue_exists(cluster: Cluster, group: str) -> None:
    """Raises CommandError if there is no share group of this name."""
    known = [listing.group for listing in list_share_groups(cluster)]
    if group not in known:
        raise _no_queue(group, known)


def _no_queue(group: str, known: Iterable[str]) -> CommandError:
    return CommandError(str(unknown_group(group, known)).replace("no group", "no share group", 1))


def _queue(client: ClusterClient, view: GroupView, *, with_runs: bool = False) -> Queue:
    offsets = offsets_by(client, view.group)
    deliveries = find_deliveries(client, view.group, offsets, with_runs=with_runs)
    partitions = [QueuePartition(place, offset, deliveries.get(place)) for place, offset in sorted(offsets.items())]
    return Queue(view, partitions, describe_configs(client, group_resource(view.group), own_only=True))


def group_resource(group: str) -> Resource:
    return Resource(ResourceType.GROUP, group)


def as_document(queue: Queue, *, with_runs: bool) -> dict[str, Any]:
    """Returns the queue as it is printed with --json."""
    view = queue.view
    document: dict[str, Any] = {
        "group": view.group,
        "state": view.state,
        "topics": queue.topics,
        "lag": queue.lag,
        "in_flight": queue.total("in_flight"),
        "waiting": queue.total("waiting"),
        "dead_letter_topic": queue.dead_letter_topic,
    }
    if not with_runs:
        return document | {"members": len(view.members)}
    return document | {
        "options": {option.name: option.value for option in queue.options},
        "members": [
            {"member_id": member.member_id, "client_id": member.client_id, "host": member.host}
            for member in view.members
        ],
        "partitions": [_partition_document(partition) for partition in queue.partitions],
    }


def _partition_document(partition: QueuePartition) -> dict[str, Any]:
    found = partition.deliveries
    return {
        **partition.where._asdict(),
        "start": partition.offset.start,
        "end": None if found is None else found.end,
        "log_end": None if found is None else found.high_watermark,
        "lag": partition.offset.lag,
        **{what: partition.in_flight(what) for what in ("available", "in_flight", "waiting", "dying")},
        "problem": partition.problem,
        "runs": None if found is None else found.runs,
    }
