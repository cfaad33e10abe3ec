"""Deletes what all groups have acknowledged, in topics that ask for it (``skep.delete.when.acknowledged``).

The leader of a partition asks the coordinators of the cluster how far the groups are, and moves the log start to the
slowest of them, as DeleteRecords does. Files are deleted by whole segments. Where nothing can be deleted nobody is
asked, and a cluster without such topics does nothing.

What keeps records from being deleted that a group still needs (docs/decisions/0024-order-and-deletion.md):

- All coordinators have answered, and lead their partitions. Otherwise nothing is deleted.
- A group that has not begun yet holds everything. A share group that begins here while coordinators are asked is not in
  their responses: its partition is left alone until the next check.
- Records of an open transaction stay.
- This broker leads the partition in the same epoch as before, and its lease has not expired.
"""

import logging
from collections.abc import Iterator, Sequence

from skep.base.clock import Clock
from skep.base.config.current_config import CurrentConfig
from skep.base.errors import KafkaError, StorageError
from skep.base.ids import LeaderEpoch, Offset
from skep.base.loop.slicer import Slicer, Work
from skep.broker.cluster.group_progress import GroupProgress, Unknown
from skep.broker.share.share_partitions import SharePartitions
from skep.coordination.topic_needs import Needs
from skep.metadata.catalog import Catalog
from skep.metadata.model import TopicRecord
from skep.replication.partition.partition import Partition
from skep.replication.replica_manager import ReplicaManager
from skep.storage.log.retention import segments_below_start

logger = logging.getLogger(__name__)

OPTION = "skep.delete.when.acknowledged"
TOPICS_AT_ONCE = 100
PARTITIONS_AT_ONCE = 5_000
"""Asked for together. A response with so many partitions takes a few milliseconds of the event loop."""
PAUSE = 20
"""After a check the next one waits at least so many times as long as it took."""

_Led = dict[Partition, LeaderEpoch]


class AcknowledgedDeletion:
    """Owns nothing but what it remembers between two checks."""

    def __init__(
        self,
        replicas: ReplicaManager,
        catalog: Catalog,
        share_partitions: SharePartitions,
        progress: GroupProgress,
        config: CurrentConfig,
        clock: Clock,
        slicer: Slicer,
    ) -> None:
        self._replicas = replicas
        self._catalog = catalog
        self._share_partitions = share_partitions
        self._progress = progress
        self._config = config
        self._clock = clock
        self._slicer = slicer
        self._seen_topics: object = None
        self._topics: Sequence[TopicRecord] = ()
        self._last_check_s = 0.0
        self._why_not = ""

    def interval_ms(self) -> int:
        return max(self._config.value.acknowledged_check_interval_ms, round(self._last_check_s * PAUSE * 1000))

    async def check(self) -> None:
        """Deletes what can be deleted now. What fails is tried again by the next check."""
        began, why_not = self._clock.monotonic(), ""
        for topics in _parts(self._asking_topics()):
            led: _Led = await self._slicer.finish(self._deletable(topics))
            if not led:
                continue
            names = {partition.topic_partition.topic for partition in led}
            begun: set[Partition] = set()
            self._share_partitions.begun = begun
            try:
                needs = await self._progress.everywhere({one.name: one.topic_id for one in topics if one.name in names})
                await self._slicer.finish(self._delete(led, needs, begun))
            except Unknown as error:
                why_not = str(error)
            finally:
                self._share_partitions.begun = None
        if why_not and why_not != self._why_not:
            logger.info("what was acknowledged is not deleted now: %s", why_not)
        self._why_not = why_not
        self._last_check_s = self._clock.monotonic() - began

    def _asking_topics(self) -> Sequence[TopicRecord]:
        topics = self._catalog.image.topics
        if topics is not self._seen_topics:
            self._seen_topics = topics
            self._topics = [topic for topic in topics.values() if OPTION in topic.config]
        return self._topics

    def _deletable(self, topics: Sequence[TopicRecord]) -> Work[_Led]:
        """Returns the partitions led here that have records which could be deleted, with their epochs."""
        led: _Led = {}
        for topic in topics:
            for index, record in enumerate(topic.partitions):
                if record.leader == self._replicas.node_id:
                    try:
                        partition = self._replicas.partition(topic.name, index)
                    except (KafkaError, StorageError):
                        continue
                    if _is_asking(partition) and partition.log.log_start_offset < partition.last_stable_offset:
                        led[partition] = partition.leader_epoch
                yield
        return led

    def _delete(self, led: _Led, needs: Needs, begun: set[Partition]) -> Work[None]:
        for partition, leader_epoch in led.items():
            topic, index = partition.topic_partition
            before = needs[topic].deletable_before(index) if topic in needs else None
            if before is None or partition in begun or not self._replicas.holds(partition):
                continue
            try:
                partition.check_leader_epoch(leader_epoch)
                partition.check_leads()
                self._delete_before(partition, before)
            except (KafkaError, StorageError) as error:
                logger.info("%s: what was acknowledged is not deleted now: %s", partition.topic_partition, error)
            yield

    def _delete_before(self, partition: Partition, before: int) -> None:
        """Moves the log start. Sealed segments below it are deleted at once; the active one, which has to be replaced
        by another, when retention is checked."""
        log = partition.log
        offset = Offset(min(before, partition.last_stable_offset, partition.high_watermark))
        if offset <= log.log_start_offset or log.is_being_cut:
            return
        log.delete_records_before(offset)
        if segments_below_start(log):
            self._replicas.delete_records_before(partition, offset)
        else:
            partition.wake_all()


def _is_asking(partition: Partition) -> bool:
    config = partition.log.config
    return config.delete_when_acknowledged and config.expires


def _parts(topics: Sequence[TopicRecord]) -> Iterator[Sequence[TopicRecord]]:
    part: list[TopicRecord] = []
    count = 0
    for topic in topics:
        if part and (len(part) == TOPICS_AT_ONCE or count + len(topic.partitions) > PARTITIONS_AT_ONCE):
            yield part
            part, count = [], 0
        part.append(topic)
        count += len(topic.partitions)
    if part:
        yield part
