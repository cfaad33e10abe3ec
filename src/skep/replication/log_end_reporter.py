"""What this broker says of its logs while a partition has no leader and no replica is there that could lead it.

After a loss of power of all in-sync replicas a partition is undecided: its ISR is empty, and the controller elects the
replica with the longest log (``controller/elections.py``). So it does when an operator gives up in-sync replicas that
do not come back. Each broker that holds a replica writes how long its log is into the record of the topic, with
compare-and-set, as the broker that is registered now: a report of an earlier process counts for nothing.

The log does not change between the report and the election. Nobody leads, so nothing is appended or cut; it was synced
when it was opened, so that another power cut takes nothing either.
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
"""Partitions of a topic that have reports at a time, the first ones: a topic is one value in the store, and ZooKeeper's
values end at 1 MB. When these are decided, the next ones are reported."""


class LogReports:
    """Owns the set of partitions here that nobody leads. Between calls the store has a report of each that is to be
    reported, by the broker as it is registered, or another attempt is due."""

    def __init__(self, node: Callable[[], BrokerRecord], catalog: Catalog) -> None:
        """``node`` gives the broker as it is registered at that moment."""
        self._node = node
        self._catalog = catalog
        self._leaderless: set[Partition] = set()
        self._news = asyncio.Event()

    def role_changed(self, partition: Partition, record: PartitionRecord | None) -> None:
        """As ``Replicas.on_role`` tells it."""
        if record is not None and record.leader == NO_LEADER:
            self._leaderless.add(partition)
        else:
            self._leaderless.discard(partition)
        if self._leaderless:
            self._news.set()

    def look_again(self) -> None:
        """Brokers have come or gone, or this one has another epoch: what it said before has to be said again."""
        if self._leaderless:
            self._news.set()

    def _is_to_report(self, record: PartitionRecord) -> bool:
        """Not while one in sync is there: it is about to be elected, and no log has to be compared."""
        return record.leader == NO_LEADER and self._catalog.image.brokers.keys().isdisjoint(record.isr)

    async def report(self) -> None:
        """Waits until there may be something to report, and reports it. To be called again and again."""
        await self._news.wait()
        self._news.clear()
        by_topic: defaultdict[str, list[Partition]] = defaultdict(list)
        for partition in self._leaderless:
            by_topic[partition.topic_partition.topic].append(partition)
        for name, partitions in by_topic.items():
            topic = self._catalog.image.topics.get(name)
            # The store is not asked where nothing is to be said, for instance when any broker comes or goes.
            if topic is None or self._reported(topic, partitions) != topic:
                await self._report(name, partitions)

    async def _report(self, topic: str, partitions: list[Partition]) -> None:
        try:
            await self._catalog.change_topic(topic, lambda record: self._reported(record, partitions))
        except (StoreUnavailable, VersionConflict) as error:
            logger.warning("the ends of the logs of %s cannot be reported, trying again: %s", topic, error)
            asyncio.get_running_loop().call_later(RETRY_PAUSE_S, self._news.set)
        except KafkaError:
            return  # the topic is gone

    def _reported(self, topic: TopicRecord, partitions: list[Partition]) -> TopicRecord:
        ours = {one.topic_partition.partition: one for one in partitions if one.topic_id == topic.topic_id}
        records = list(topic.partitions)
        undecided = [index for index, record in enumerate(records) if self._is_to_report(record)]
        for index in undecided[:MAX_REPORTED]:
            partition, record = ours.get(index), records[index]
            # In another epoch somebody may lead, and we may follow. Our image will show that, and then we look again.
            if partition is not None and record.leader_epoch == partition.leader_epoch:
                records[index] = record.with_report(self._report_of(partition))
        return replace(topic, partitions=tuple(records))

    def _report_of(self, partition: Partition) -> LogReport:
        node, log = self._node(), partition.log
        return LogReport(node.id, node.epoch, log.last_batch_epoch, log.log_end_offset)
