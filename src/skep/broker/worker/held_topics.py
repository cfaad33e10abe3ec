"""Held topics: which partitions of them this broker's worker runs, and what their options may be.

A held topic (``skep.held.target``) is a compacted topic whose records wait until they are due. The worker of a
partition's leader releases them (``skep/worker/held``); here is only what the broker decides.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from skep.base.config.option import parse_into
from skep.base.config.topic_config import ROLLBACK, TopicConfig
from skep.base.errors import ErrorCode, KafkaError
from skep.base.ids import BrokerId
from skep.base.loop.supervisor import Supervisor
from skep.metadata.cluster_image import ClusterImage

HELD_TARGET = "skep.held.target"
JOB = "held"
CHECK_MS = 100
SHORTEST_DELETE_RETENTION_MS = 60_000
"""A worker that reads the log again must still find the tombstones of what it has known before."""
IMPLIED = {"cleanup.policy": "compact", "min.compaction.lag.ms": "3600000"}
"""What a held topic is created with if nothing else is said. Without the lag, the commit of a half message could make
compaction remove the message before it is released."""


def with_implied(overrides: Mapping[str, str]) -> dict[str, str]:
    """Returns the overrides of a new topic, with those that a held topic needs."""
    if not overrides.get(HELD_TARGET):
        return dict(overrides)
    implied = dict(IMPLIED)
    if "max.compaction.lag.ms" in overrides:
        del implied["min.compaction.lag.ms"]  # it might be greater
    return implied | dict(overrides)


def check_held(name: str, config: TopicConfig, image: ClusterImage, internal: frozenset[str]) -> None:
    """Raises INVALID_CONFIG if a held topic of this name cannot have these options."""
    target = config.held_target
    if not target:
        return
    if target == name:
        raise _invalid(f"{HELD_TARGET}={target}: a held topic cannot be its own target")
    if target in internal or name in internal:
        raise _invalid(f"{HELD_TARGET}={target}: an internal topic can neither be held nor be a target")
    other = image.topics.get(target)
    if other is not None and other.config.get(HELD_TARGET):
        raise _invalid(f"{HELD_TARGET}={target}: the target is a held topic itself")
    sources = [one.name for one in image.topics.values() if one.config.get(HELD_TARGET) == name]
    if sources:
        # What is released into it would have no time any more, and wait for a commit that nobody sends.
        raise _invalid(f"{HELD_TARGET}={target}: {name} is itself the target of {min(sources)}")
    if config.cleanup_policy != ("compact",):
        raise _invalid(f"{HELD_TARGET} needs cleanup.policy=compact, not {','.join(config.cleanup_policy) or 'none'}")
    if config.delete_when_acknowledged:
        raise _invalid(f"{HELD_TARGET} and skep.delete.when.acknowledged exclude each other")
    if config.delete_retention_ms < SHORTEST_DELETE_RETENTION_MS:
        raise _invalid(f"{HELD_TARGET} needs delete.retention.ms of at least {SHORTEST_DELETE_RETENTION_MS}")


def check_held_room(image: ClusterImage, limit: int, more: int) -> None:
    """Raises POLICY_VIOLATION if so many more partitions of held topics would be too many for the workers."""
    held = sum(len(topic.partitions) for topic in image.topics.values() if topic.config.get(HELD_TARGET))
    if held + more > limit:
        raise KafkaError(
            ErrorCode.policy_violation,
            f"{more} more partition(s) of held topics would exceed skep.held.max.partitions={limit}; there are {held}.",
        )


def _invalid(text: str) -> KafkaError:
    return KafkaError(ErrorCode.invalid_config, text)


class Worker(Protocol):
    def tell(self, job: str, state: dict[str, Any] | None) -> None: ...


class HeldTopics:
    """Tells the worker which partitions it runs, when that changes."""

    def __init__(
        self,
        node_id: BrokerId,
        worker: Worker,
        image: Callable[[], ClusterImage],
        defaults: Callable[[], TopicConfig],
        supervisor: Supervisor,
    ) -> None:
        self._node_id = node_id
        self._worker = worker
        self._image = image
        self._defaults = defaults
        self._seen: tuple[object, object] = (None, None)
        self._told: dict[str, Any] | None = None
        # Topics change in bursts; a look at ten thousand of them takes a millisecond.
        supervisor.repeat(lambda: CHECK_MS, self.check)

    async def check(self) -> None:
        image, defaults = self._image(), self._defaults()
        if self._seen[0] is image.topics and self._seen[1] is defaults:
            return
        self._seen = image.topics, defaults
        specs = []
        held = [topic for topic in image.topics.values() if topic.config.get(HELD_TARGET)]
        for topic in held:
            await asyncio.sleep(0)
            config = parse_into(defaults, topic.config)
            specs += [
                _spec(topic.name, topic.topic_id.hex, index, partition.leader_epoch, config)
                for index, partition in enumerate(topic.partitions)
                if partition.leader == self._node_id
            ]
        state = {"partitions": specs, "topics": sorted(topic.name for topic in held)} if specs else None
        if state != self._told:
            self._told = state
            self._worker.tell(JOB, state)


def _spec(topic: str, topic_id: str, partition: int, leader_epoch: int, config: TopicConfig) -> dict[str, Any]:
    """Returns the fields of ``HeldSpec`` (``worker/held/held_partition.py``)."""
    return {
        "topic": topic,
        "topic_id": topic_id,
        "partition": partition,
        "leader_epoch": leader_epoch,
        "target": config.held_target,
        "tick_ms": config.held_tick_ms,
        "max_delay_ms": config.held_max_delay_ms,
        "rolls_back_undecided": config.held_undecided == ROLLBACK,
        "delete_retention_ms": config.delete_retention_ms,
        "max_firings_per_second": config.held_max_firings_per_second,
    }
