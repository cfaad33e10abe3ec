"""Where the records of a held topic go when they are due, and why one of them cannot be written there.

The worker retries such a record, and logs the error in the broker's log only. This module finds the reason without the
worker: whether the topic exists, and its size limit.
"""

from skep.cli.cluster.config_admin import Resource, ResourceType, describe_configs
from skep.cli.connection import Cluster
from skep.cli.skep_client import skep_client
from skep.records.builder import NewRecord, build_batch
from skep.worker.held.held_index import Entry
from skep.worker.held.plan import Kind
from skep.worker.held.transition import fire


class Destinations:
    """Looks at the topics of the cluster once, and at the limit of each topic once."""

    def __init__(self, cluster: Cluster, held_topic: str, target: str) -> None:
        self._cluster = cluster
        self._held_topic, self._target = held_topic, target
        self._topics = cluster.metadata(held_topic).topics
        self._limits: dict[str, int] = {}

    @property
    def has_target(self) -> bool:
        return self._target in self._topics

    def obstacle(self, entry: Entry, partition: int, now_ms: int) -> str | None:
        """Returns why the entry is not released, or will not be; None if nothing is known."""
        if entry.due_ms is None or entry.kind is Kind.INVALID:
            return None
        for topic, key, value, headers in fire(entry, self._held_topic, partition, self._target, now_ms).outputs:
            if topic not in self._topics:
                # Before its due time this is no obstacle: the topic may be created until then, also by the release
                # itself.
                return f"topic {topic} does not exist" if entry.due_ms <= now_ms else None
            size, limit = len(build_batch([NewRecord(key, value, 0, headers)])), self._limit(topic)
            if size > limit:
                return f"{size} bytes are more than max.message.bytes={limit} of {topic}"
        return None

    def _limit(self, topic: str) -> int:
        if topic not in self._limits:
            with skep_client(self._cluster) as client:
                configs = describe_configs(client, Resource(ResourceType.TOPIC, topic))
            [self._limits[topic]] = [int(one.value or 0) for one in configs if one.name == "max.message.bytes"]
        return self._limits[topic]
