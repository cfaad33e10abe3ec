"""Topics, configs, brokers and numbers: the operations of the cluster, above any ``MetadataStore``.

Each operation reads, decides, and writes with compare-and-set. When another process wrote in between it decides
again, so what a caller wants is given as a function of what is there (``edit``), not as the result computed from an
image that may be old.

Values of configs are text here; whoever calls has checked them. Placing replicas is the caller's too.
"""

import asyncio
import contextlib
import logging
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from skep.base.errors import ErrorCode, KafkaError, StartupError, VersionConflict
from skep.base.ids import BrokerId
from skep.base.loop.threads import run_apart
from skep.metadata import layout
from skep.metadata.cluster_image import ClusterImage, ConfigOwner
from skep.metadata.compare_and_set import ATTEMPTS, gave_up, update
from skep.metadata.current_image import CurrentImage, OnChange
from skep.metadata.metadata_store import MUST_NOT_EXIST, MetadataStore, Put, Versioned
from skep.metadata.model import (
    BrokerRecord,
    ControllerRecord,
    PartitionRecord,
    TopicRecord,
    decode_field,
    encode_fields,
    random_id,
)
from skep.metadata.topic_names import check_topic_name, is_topic_name, metric_name

logger = logging.getLogger(__name__)

PRODUCER_ID_BLOCK = 1000
MANY_PARTITIONS = 500
"""The record of a topic with more is made in a thread: of ten thousand that takes twenty milliseconds."""
REGISTRATION_PAUSE_S = 0.2

Edit = Callable[[Mapping[str, str]], Mapping[str, str]]


class Controllership(NamedTuple):
    """The right to write as the controller: ``guard`` is the key and version that the store checks at each write."""

    record: ControllerRecord
    guard: tuple[str, int]


class Catalog:
    """The image and all that changes it. The store is opened before and closed after by whoever made it.

    Between calls the image holds everything our own operations have done, and what others did up to the last report
    of the watch. Operations raise StoreUnavailable, and VersionConflict when they lose too often in a row.
    """

    def __init__(self, store: MetadataStore, node_id: BrokerId | None = None) -> None:
        """``node_id`` is the broker whose deletions are meant; None: those of all."""
        self._store = store
        self._node_id = node_id
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

    async def reload(self) -> None:
        """Reads the image anew, for whoever was away and whose watch may not work yet."""
        await self._current.reload()

    @property
    def pending_deletions(self) -> Mapping[uuid.UUID, str]:
        """Names by id of the topics that are gone but whose files here may not be; ``deletion_done`` ends each."""
        return {
            topic_id: deletion.name
            for topic_id, deletion in self._current.deletions.items()
            if self._node_id is None or not deletion.brokers or self._node_id in deletion.brokers
        }

    def deletions_waiting_for(self, broker_id: BrokerId) -> list[uuid.UUID]:
        """The topics that are gone, but whose files are yet to be removed by this broker."""
        return [topic_id for topic_id, deletion in self._current.deletions.items() if broker_id in deletion.brokers]

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
            topic, value = await run_apart(
                lambda: _new_topic(name, assignments, config), if_true=len(assignments) > MANY_PARTITIONS
            )
            try:
                version = await self._store.put(key, value, expected_version=MUST_NOT_EXIST)
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
            entry = await self._store.get(layout.topic_key(name))
            topic = await run_apart(lambda: _topic(name, entry), if_true=_is_large(entry))
            if topic_id not in (None, topic.topic_id):
                raise KafkaError(ErrorCode.unknown_topic_id, f"Topic '{name}' has another id by now.")
            holders = sorted({broker for partition in topic.partitions for broker in partition.replicas})
            deletion = layout.Deletion(name, tuple(holders))
            await self._store.put(layout.deletion_key(topic.topic_id), deletion.encode())
            self._current.deletions = {**self._current.deletions, topic.topic_id: deletion}
            await self._current.remove_topic(topic)
            return topic

    async def deletion_done(self, topic_id: uuid.UUID, broker_id: BrokerId | None = None) -> None:
        """The files of the topic are gone here, or will never be asked for again on another broker.

        The mark goes with the last broker that had some, so that one which was away finds it when it comes back.
        """
        done = self._node_id if broker_id is None else broker_id
        async with self._current.turn:
            mark = layout.deletion_key(topic_id)
            for _ in range(ATTEMPTS):
                try:
                    entry = await self._without_holder(mark, done)
                except VersionConflict:
                    continue
                self._current.deletions = layout.deletions_after(self._current.deletions, mark, entry)
                return
            raise gave_up(mark)

    async def _without_holder(self, mark: str, done: BrokerId | None) -> Versioned | None:
        entry = await self._store.get(mark)
        if entry is None:
            return None
        deletion = layout.Deletion.decode(mark, entry.value)
        if done is not None and deletion.brokers and done not in deletion.brokers:
            return entry
        left = () if done is None else tuple(broker for broker in deletion.brokers if broker != done)
        if not left:
            await self._store.delete(mark, expected_version=entry.version)
            return None
        value = deletion._replace(brokers=left).encode()
        return Versioned(value, await self._store.put(mark, value, expected_version=entry.version))

    async def create_partitions(
        self, name: str, assignments: Sequence[Sequence[BrokerId]], *, current_count: int
    ) -> TopicRecord:
        """Add partitions to a topic that has ``current_count``; INVALID_PARTITIONS when it has another number by now.

        Without the number, two requests for "three partitions" that race would make five.
        """
        added = await run_apart(lambda: _new_partitions(assignments), if_true=len(assignments) > MANY_PARTITIONS)

        def grown(topic: TopicRecord) -> TopicRecord:
            if len(topic.partitions) != current_count:
                raise KafkaError(
                    ErrorCode.invalid_partitions,
                    f"Topic '{name}' has {len(topic.partitions)} partitions by now, not {current_count}.",
                )
            return replace(topic, partitions=topic.partitions + added)

        return await self.change_topic(name, grown)

    async def alter_topic_config(self, name: str, edit: Edit) -> TopicRecord:
        """Replace a topic's overrides by ``edit(overrides)``; what ``edit`` raises leaves them as they are."""
        return await self.change_topic(name, lambda topic: replace(topic, config=dict(edit(topic.config))))

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

    async def register_broker(self, broker: BrokerRecord, *, patience_s: float = 0) -> BrokerRecord:
        """Make the broker known while our session lasts; its record with its epoch. StartupError: the id is in use.

        ``patience_s`` is how long the session of a process that is dead already may linger in the store.
        """
        registered = replace(broker, epoch=(await self._take(layout.BROKER_EPOCHS, 1)).start)
        key, deadline = layout.broker_key(broker.id), time.monotonic() + patience_s
        is_waiting = False
        while True:
            try:
                async with self._current.turn:
                    await self._store.put_ephemeral(key, registered.encode())
                    self._current.become(self.image.with_broker(registered))
                return registered
            except VersionConflict:
                if time.monotonic() >= deadline:
                    raise await self._id_is_taken(registered) from None
            if not is_waiting:
                logger.info("broker %d is registered already; waiting for that session to end", broker.id)
            is_waiting = True
            await asyncio.sleep(REGISTRATION_PAUSE_S)

    async def wait_until_free(self, broker: BrokerRecord, *, patience_s: float = 0) -> None:
        """Until no session has the broker's id; StartupError when one still has it after ``patience_s``."""
        deadline = time.monotonic() + patience_s
        while await self._store.get(layout.broker_key(broker.id)) is not None:
            if time.monotonic() >= deadline:
                raise await self._id_is_taken(broker)
            await asyncio.sleep(REGISTRATION_PAUSE_S)

    async def _id_is_taken(self, broker: BrokerRecord) -> StartupError:
        entry = await self._store.get(layout.broker_key(broker.id))
        other = broker if entry is None else BrokerRecord.decode(broker.id, entry.value)
        return StartupError(
            f"broker {broker.id} is already running at {other.host}:{other.port}; choose another node.id"
        )

    async def update_registration(self, broker: BrokerRecord) -> None:
        """Change what is said of a broker that we have registered. VersionConflict: the registration is gone."""
        key = layout.broker_key(broker.id)
        async with self._current.turn:
            entry = await self._store.get(key)
            if entry is None or BrokerRecord.decode(broker.id, entry.value).epoch != broker.epoch:
                raise VersionConflict(f"{key} is not the registration with epoch {broker.epoch} any more")
            await self._store.put(key, broker.encode(), expected_version=entry.version)
            self._current.become(self.image.with_broker(broker))

    async def is_registered(self, broker: BrokerRecord) -> bool:
        """Whether the store has this very registration; so the session that made it lives."""
        entry = await self._store.get(layout.broker_key(broker.id))
        async with self._current.turn:
            # A refresh that has begun ends first: with the registration the image is to be as new as the answer.
            return entry is not None and BrokerRecord.decode(broker.id, entry.value).epoch == broker.epoch

    # The controller.

    async def become_controller(self, broker_id: BrokerId) -> Controllership | None:
        """Be the controller while our session lasts; None when another broker is."""
        async with self._current.turn:
            if not await self._controller_key_is_free(broker_id):
                return None
            entry = await self._store.get(layout.CONTROLLER_EPOCH)
            epoch = 1 + _counter(layout.CONTROLLER_EPOCH, entry)
            record = ControllerRecord(broker_id, epoch)
            try:
                await self._store.put_ephemeral(layout.CONTROLLER, record.encode())
                # Whoever was controller before is fenced from here on, also if it was only frozen.
                version = await self._store.put(
                    layout.CONTROLLER_EPOCH,
                    encode_fields(next=epoch),
                    expected_version=MUST_NOT_EXIST if entry is None else entry.version,
                )
            except VersionConflict:
                return None
            self._current.become(self.image.with_controller(record))
            return Controllership(record, (layout.CONTROLLER_EPOCH, version))

    async def _controller_key_is_free(self, broker_id: BrokerId) -> bool:
        entry = await self._store.get(layout.CONTROLLER)
        if entry is None:
            return True
        if ControllerRecord.decode(entry.value).broker_id != broker_id:
            return False
        # Ours, from an attempt of which we did not learn how it ended.
        try:
            return await self._store.delete(layout.CONTROLLER, expected_version=entry.version)
        except VersionConflict:
            return False

    async def resign(self, controllership: Controllership) -> None:
        """Stop being the controller, if we still are."""
        entry = await self._store.get(layout.CONTROLLER)
        if entry is not None and ControllerRecord.decode(entry.value) == controllership.record:
            with contextlib.suppress(VersionConflict):
                await self._store.delete(layout.CONTROLLER, expected_version=entry.version)

    async def put_topics(self, controllership: Controllership, topics: Sequence[TopicRecord]) -> list[str]:
        """Write topics as the controller decided, each only if it is still at ``version``; the names that were not.

        Fenced when there is a newer controller: nothing was written then.
        """
        async with self._current.turn:
            entries = await run_apart(
                lambda: [Put(layout.topic_key(topic.name), topic.encode(), topic.version) for topic in topics],
                if_true=sum(len(topic.partitions) for topic in topics) > MANY_PARTITIONS,
            )
            results = await self._store.put_many(entries, guard=controllership.guard)
            written = [replace(t, version=v) for t, v in zip(topics, results, strict=True) if isinstance(v, int)]
            self._current.become(self.image.with_topics(written))
        return [topic.name for topic, result in zip(topics, results, strict=True) if not isinstance(result, int)]

    async def _take(self, key: str, count: int) -> range:
        """Move the counter at ``key`` on by ``count``, and give what it passed."""
        entry = await update(self._store, key, lambda entry: encode_fields(next=_counter(key, entry) + count))
        end = _counter(key, entry)
        return range(end - count, end)

    async def change_topic(
        self, name: str, change: Callable[[TopicRecord], TopicRecord], *, always_write: bool = False
    ) -> TopicRecord:
        """Replace a topic by ``change(topic)``, which is asked again when another writer was first.

        The same topic given back writes nothing, unless ``always_write`` (see ``update``). What ``change`` raises
        leaves the topic as it is. The image does not change between the last call of ``change`` and the write.
        """
        if not is_topic_name(name):
            raise _unknown(name)
        key = layout.topic_key(name)
        async with self._current.turn:
            entry = await update(
                self._store, key, lambda entry: _changed(name, entry, change), always_write=always_write
            )
            image = self.image
            changed = await run_apart(lambda: layout.image_after(image, key, entry), if_true=_is_large(entry))
            self._current.become(changed)
            return self.image.topics[name]

    async def heard_of(self, name: str, change: Callable[[TopicRecord], TopicRecord]) -> None:
        """Later elections, which another broker has from the store. Nothing is written; the watch will tell the same.

        The record keeps its version, which is older than the store's: a change that is based on it is decided again.
        Nor does a record that is read later, but is older, take the elections back.
        """
        async with self._current.turn:
            topic = self.image.topics.get(name)
            if topic is not None and (changed := change(topic)) is not topic:
                self._current.become(self.image.with_topic(changed))


def _new_topic(
    name: str, assignments: Sequence[Sequence[BrokerId]], config: Mapping[str, str] | None
) -> tuple[TopicRecord, bytes]:
    """The record, and as the store keeps it."""
    topic = TopicRecord(name, random_id(), _new_partitions(assignments), dict(config or {}))
    return topic, topic.encode()


async def _changed(name: str, entry: Versioned | None, change: Callable[[TopicRecord], TopicRecord]) -> bytes:
    """``change`` is called on the event loop; a large record is read and written in a thread."""
    is_large = _is_large(entry)
    changed = change(await run_apart(lambda: _topic(name, entry), if_true=is_large))
    return await run_apart(changed.encode, if_true=is_large or len(changed.partitions) > MANY_PARTITIONS)


def _is_large(entry: Versioned | None) -> bool:
    return entry is not None and len(entry.value) > layout.LARGE_RECORD


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
