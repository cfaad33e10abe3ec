"""What share groups have in flight: the command ``deliveries`` of the private API, which other brokers do not have."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from skep.base.ids import TopicPartition
from skep.client.cluster_client import ClusterClient
from skep.client.commands import command_to_leader, commands_to_leaders
from skep.client.errors import Unsupported

PAGE = 1000
"""How many runs a request asks for; the most that a broker returns."""


@dataclass(frozen=True)
class Deliveries:
    """The window of a share group in a partition. ``records`` are those in the window, by state."""

    start: int | None
    end: int | None
    high_watermark: int
    records: Mapping[str, int]
    runs: list[Mapping[str, Any]] = field(default_factory=list)
    problem: str | None = None
    """Why the leader delivers nothing, or cannot write dead letters."""

    @property
    def in_flight(self) -> int:
        """How many records members hold."""
        return self.records.get("acquired", 0)

    @property
    def waiting(self) -> int:
        """How many records are to be delivered again, and not yet."""
        return self.records.get("waiting", 0)

    @property
    def dying(self) -> int:
        """How many records are on their way to the dead-letter topic."""
        return self.records.get("archiving", 0)

    @property
    def available(self) -> int:
        """How many records, or holes in the log, the next members to ask may get."""
        never_delivered = 0 if self.end is None else max(0, self.high_watermark - self.end)
        return self.records.get("available", 0) + never_delivered


def find_deliveries(
    client: ClusterClient, group: str, places: Collection[TopicPartition], *, with_runs: bool = False
) -> dict[TopicPartition, Deliveries]:
    """Returns what the group has in flight of each partition that has a leader; nothing if the brokers cannot say."""
    limit = PAGE if with_runs else 0
    try:
        pages = commands_to_leaders(client, places, "deliveries", {"group": group, "limit": limit})
        return {place: _whole(client, group, place, page) for place, page in pages.items()}
    except Unsupported:
        return {}


def _whole(client: ClusterClient, group: str, place: TopicPartition, page: Mapping[str, Any]) -> Deliveries:
    runs, after = list(page["runs"]), page["next"]
    while after is not None:
        more = command_to_leader(client, *place, "deliveries", {"group": group, "limit": PAGE, "after": after})
        runs += more["runs"]
        after = more["next"]
    return Deliveries(page["start"], page["end"], page["high_watermark"], page["records"], runs, page.get("problem"))
