"""Reports the log ends of partitions that have no leader and no live replica that could lead.

After a power loss of all in-sync replicas a partition is undecided: its ISR is empty, and the controller elects the
replica with the longest log (``controller/elections.py``). The same happens when an operator gives up in-sync replicas
that do not come back. Each broker with a replica writes its last epoch and log end into the topic's record, with
compare-and-set and with the epoch of its current registration: a report of an earlier process counts for nothing.

The log does not change between the report and the election. There is no leader, so nothing is appended or truncated;
the log was synced when it was opened, so another power cut takes nothing either.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace

from skep.base.errors import KafkaError, StoreUnavailable, VersionConflict
from skep.metadata.catalog import Catalog
from skep.metadata.model import NO_LEADER, BrokerRecord, LogReport, PartitionRecord, TopicRecord
from skep.replication.partition.partition import Partition

logger = logging.getLogger(__name__)

RETRY_PAUSE_S = 0.5
MAX_REPORTED = 2000
"""The number of partitions of a topic that have reports at a time, the first ones: a topic is one value in the store,
and ZooKeeper's values are limited to 1 MB. When these are decided, the next ones are reported."""


class LogEndReporter:
    """Owns the set of partitions here that have no leader. Between calls the store has a report of each that needs one,
    by the current registration of this broker, or another attempt is scheduled."""

    def __init__(self, node: Callable[[], BrokerRecord], catalog: Catalog) -> None:
        """``node`` returns the current registration of this broker."""
        self._node = node
        self._catalog = catalog
        self._leaderless: set[Partition] = set()
        self._news = asyncio.Event()

    def role_changed(self, partition: Partition, record: PartitionRecord | None) -> None:
        """Called by ``ReplicaManager.on_role_change``."""
        if record is not None and record.leader == NO_LEADER:
            self._leaderless.add(partition)
        else:
            self._leaderless.discard(partition)
        if self._leaderless:
            self._news.set()

    def recheck(self) -> None:
        """Brokers have come or gone, or this one has a new epoch: earlier reports may have to be written again."""
        if self._leaderless:
            self._news.set()

    def _is_to_report(self, record: PartitionRecord) -> bool:
        """Whether a report is needed: not while an in-sync replica is live, which will be elected without comparing
        logs."""
        return record.leader == NO_LEADER and self._catalog.image.brokers.keys().isdisjoint(record.isr)

    async def report(self) -> None:
        """Waits until a report may be needed, and writes it. Must be called in a loop."""
        await self._news.wait()
        self._news.clear()
        by_topic: defaultdict[str, list[Partition]] = defaultdict(list)
        for partition in self._leaderless:
            by_topic[partition.topic_partition.topic].append(partition)
        for name, partitions in by_topic.items():
            topic = self._catalog.image.topics.get(name)
            # No write where nothing has changed, for example when any broker comes or goes.
            if topic is None or self._reported(topic, partitions) != topic:
                await self._report(name, partitions)

    async def _report(self, topic: str, partitions: list[Partition]) -> None:
        try:
            await self._catalog.change_topic(topic, lambda record: self._reported(record, partitions))
        except (StoreUnavailable, VersionConflict) as error:
            logger.warning("cannot report the log ends of %s, retrying: %s", topic, error)
            asyncio.get_running_loop().call_later(RETRY_PAUSE_S, self._news.set)
        except KafkaError:
            return  # the topic is gone

    def _reported(self, topic: TopicRecord, partitions: list[Partition]) -> TopicRecord:
        ours = {one.topic_partition.partition: one for one in partitions if one.topic_id == topic.topic_id}
        records = list(topic.partitions)
        undecided = [index for index, record in enumerate(records) if self._is_to_report(record)]
        for index in undecided[:MAX_REPORTED]:
            partition, record = ours.get(index), records[index]
            # In another epoch there may be a leader, and we may follow it. Our image will show that, and then this runs
            # again.
            if partition is not None and record.leader_epoch == partition.leader_epoch:
                records[index] = record.with_report(self._report_of(partition))
        return replace(topic, partitions=tuple(records))

    def _report_of(self, partition: Partition) -> LogReport:
        node, log = self._node(), partition.log
        return LogReport(node.id, node.epoch, log.last_batch_epoch, log.log_end_offset)
