"""Topics, configs, brokers and numbers: the operations of the cluster, above any ``MetadataStore``.

Each operation reads, decides, and writes with compare-and-set. When another process wrote in between it decides
again, so what a caller wants is given as a function of what is there (``edit``), not as the result computed from an
image that may be old.

Values of configs are text here; whoever calls has checked them. Placing replicas is the caller's too.
"""

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from skep.base.errors import ErrorCode, KafkaError, StartupError, VersionConflict
from skep.base.ids import BrokerId
from skep.metadata import layout
from skep.metadata.compare_and_set import update
from skep.metadata.current import CurrentImage, OnChange
from skep.metadata.image import ClusterImage, ConfigOwner
from skep.metadata.model import BrokerRecord, PartitionRecord, TopicRecord, decode_field, encode_fields, random_id
from skep.metadata.names import check_topic_name, is_topic_name, metric_name
from skep.metadata.store import MUST_NOT_EXIST, MetadataStore, Versioned

PRODUCER_ID_BLOCK = 1000

Edit = Callable[[Mapping[str, str]], Mapping[str, str]]


class Catalog:
    """The image and all that changes it. The store is opened before and closed after by whoever made it.

    Between calls the image holds everything our own operations have done, and what others did up to the last report
    of the watch. Operations raise StoreUnavailable, and VersionConflict when they lose too often in a row.
    """

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._current = CurrentImage(store)

    async def open(self) -> None:
        """Load the image, making the cluster id on first use, and finish the deletions that a crash interrupted."""
        await self._current.open()

    async def close(self) -> None:
        await self._current.close()

    @property
    def image(self) -> ClusterImage:
        """The cluster as it is known now; empty before ``open``."""
        return self._current.image

    def on_change(self, callback: OnChange) -> None:
        """Call ``callback(old, new)`` whenever the image is replaced, in the same step of the event loop."""
        self._current.on_change(callback)

    @property
    def pending_deletions(self) -> Mapping[uuid.UUID, str]:
        """Names by id of the topics that are gone but whose files may not be; ``deletion_done`` ends each."""
        return self._current.deletions

    def check_new_topic(self, name: str) -> None:
        """Refuse a name that ``create_topic`` would refuse, as far as the image knows."""
        check_topic_name(name)
        if name in self.image.topics:
            raise _already_exists(name)
        other = self.image.names_by_metric_name.get(metric_name(name))
        if other is not None:
            raise KafkaError(
                ErrorCode.invalid_topic_exception,
                f"Topic '{name}' collides with existing topic '{other}': '.' and '_' are one in metric names.",
            )

    async def create_topic(
        self, name: str, assignments: Sequence[Sequence[BrokerId]], config: Mapping[str, str] | None = None
    ) -> TopicRecord:
        """A topic with one partition per assignment; the first replica of each leads."""
        async with self._current.turn:
            self.check_new_topic(name)
            key = layout.topic_key(name)
            topic = TopicRecord(name, random_id(), _new_partitions(assignments), dict(config or {}))
            try:
                version = await self._store.put(key, topic.encode(), expected_version=MUST_NOT_EXIST)
            except VersionConflict:
                # Another broker was first. Whoever now looks for the topic in the image is to find it.
                self._current.become(layout.image_after(self.image, key, await self._store.get(key)))
                raise _already_exists(name) from None
            topic = replace(topic, version=version)
            self._current.become(self.image.with_topic(topic))
            return topic

    async def delete_topic(self, name: str, topic_id: uuid.UUID | None = None) -> TopicRecord:
        """Mark the topic for deletion, then remove it; ``deletion_done`` is due when its files are gone.

        With ``topic_id``, only the topic that has it: UNKNOWN_TOPIC_ID when another one has taken the name.

        The mark comes first, so that no crash leaves files that nothing says to remove. From then on the topic is
        going, whatever happens: the watch, or the next ``open``, goes on where this stopped. So when this fails with
        StoreUnavailable the topic may vanish later.
        """
        if not is_topic_name(name):
            raise _unknown(name)
        async with self._current.turn:
            topic = _topic(name, await self._store.get(layout.topic_key(name)))
            if topic_id not in (None, topic.topic_id):
                raise KafkaError(ErrorCode.unknown_topic_id, f"Topic '{name}' has another id by now.")
            await self._store.put(layout.deletion_key(topic.topic_id), layout.encode_deletion(name))
            self._current.deletions = {**self._current.deletions, topic.topic_id: name}
            await self._current.remove_topic(topic)
            return topic

    async def deletion_done(self, topic_id: uuid.UUID) -> None:
        """The files of the topic are gone."""
        async with self._current.turn:
            mark = layout.deletion_key(topic_id)
            await self._store.delete(mark)
            self._current.deletions = layout.deletions_after(self._current.deletions, mark, None)

    async def create_partitions(
        self, name: str, assignments: Sequence[Sequence[BrokerId]], *, current_count: int
    ) -> TopicRecord:
        """Add partitions to a topic that has ``current_count``; INVALID_PARTITIONS when it has another number by now.

        Without the number, two requests for "three partitions" that race would make five.
        """

        def grown(topic: TopicRecord) -> TopicRecord:
            if len(topic.partitions) != current_count:
                raise KafkaError(
                    ErrorCode.invalid_partitions,
                    f"Topic '{name}' has {len(topic.partitions)} partitions by now, not {current_count}.",
                )
            return replace(topic, partitions=topic.partitions + _new_partitions(assignments))

        return await self._change_topic(name, grown)

    async def alter_topic_config(self, name: str, edit: Edit) -> TopicRecord:
        """Replace a topic's overrides by ``edit(overrides)``; what ``edit`` raises leaves them as they are."""
        return await self._change_topic(name, lambda topic: replace(topic, config=dict(edit(topic.config))))

    async def alter_broker_config(self, owner: ConfigOwner, edit: Edit) -> Mapping[str, str]:
        """Replace the overrides of one broker, or of CLUSTER_DEFAULT, by ``edit(overrides)``."""
        await self._alter_config(layout.config_key(owner), edit)
        return self.image.broker_config(owner)

    async def alter_group_config(self, group_id: str, edit: Edit) -> Mapping[str, str]:
        """Replace the overrides of one group by ``edit(overrides)``; whether there is such a group is not asked."""
        await self._alter_config(layout.group_config_key(group_id), edit)
        return self.image.group_config(group_id)

    async def _alter_config(self, key: str, edit: Edit) -> None:
        def edited(entry: Versioned | None) -> bytes:
            return layout.encode_config(edit({} if entry is None else layout.decode_config(key, entry.value)))

        async with self._current.turn:
            entry = await update(self._store, key, edited)
            self._current.become(layout.image_after(self.image, key, entry))

    async def allocate_producer_ids(self, count: int = PRODUCER_ID_BLOCK) -> range:
        """Producer ids that nobody else was or will be given. A crash loses those not yet used, and no more."""
        return await self._take(layout.PRODUCER_IDS, count)

    async def register_broker(self, broker: BrokerRecord) -> BrokerRecord:
        """Make the broker known while our session lasts; its record with its epoch. StartupError: the id is in use."""
        registered = replace(broker, epoch=(await self._take(layout.BROKER_EPOCHS, 1)).start)
        key = layout.broker_key(broker.id)
        async with self._current.turn:
            try:
                await self._store.put_ephemeral(key, registered.encode())
            except VersionConflict:
                entry = await self._store.get(key)
                other = registered if entry is None else BrokerRecord.decode(broker.id, entry.value)
                raise StartupError(
                    f"broker {broker.id} is already running at {other.host}:{other.port}; choose another node.id"
                ) from None
            self._current.become(self.image.with_broker(registered))
        return registered

    async def _take(self, key: str, count: int) -> range:
        """Move the counter at ``key`` on by ``count``, and give what it passed."""
        entry = await update(self._store, key, lambda entry: encode_fields(next=_counter(key, entry) + count))
        end = _counter(key, entry)
        return range(end - count, end)

    async def _change_topic(self, name: str, change: Callable[[TopicRecord], TopicRecord]) -> TopicRecord:
        if not is_topic_name(name):
            raise _unknown(name)
        key = layout.topic_key(name)
        async with self._current.turn:
            entry = await update(self._store, key, lambda entry: change(_topic(name, entry)).encode())
            self._current.become(layout.image_after(self.image, key, entry))
            return self.image.topics[name]


def _topic(name: str, entry: Versioned | None) -> TopicRecord:
    if entry is None:
        raise _unknown(name)
    return TopicRecord.decode(name, entry.value, entry.version)


def _unknown(name: str) -> KafkaError:
    return KafkaError(ErrorCode.unknown_topic_or_partition, f"Topic '{name}' does not exist.")


def _counter(key: str, entry: Versioned | None) -> int:
    return 0 if entry is None else int(decode_field(key, entry.value, "next"))


def _already_exists(name: str) -> KafkaError:
    return KafkaError(ErrorCode.topic_already_exists, f"Topic '{name}' already exists.")


def _new_partitions(assignments: Sequence[Sequence[BrokerId]]) -> tuple[PartitionRecord, ...]:
    if not assignments:
        raise KafkaError(ErrorCode.invalid_partitions, "No partition was asked for.")
    for replicas in assignments:
        if not replicas or len(set(replicas)) != len(replicas):
            raise KafkaError(
                ErrorCode.invalid_replica_assignment,
                f"The replicas of a partition are one or more different brokers, not {list(replicas)}.",
            )
    return tuple(PartitionRecord.new(replicas) for replicas in assignments)
