"""The catalog: topics, configs, brokers and counters of the cluster, above any ``MetadataStore``.

Each operation reads, decides, and writes with compare-and-set. If another process wrote in between, it decides again.
So a caller passes a function of the current state (``edit``), not a result computed from an image that may be stale.

Config values are text here, and callers have checked them. Callers also place replicas.
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
from skep.base.loop.threads import maybe_in_thread
from skep.metadata import layout
from skep.metadata.cluster_image import ClusterImage, ConfigOwner, Fields
from skep.metadata.compare_and_set import ATTEMPTS, too_many_conflicts, update
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
"""The record of a topic with more is made in a thread: for ten thousand it takes 20 ms."""
REGISTRATION_PAUSE_S = 0.2

Edit = Callable[[Mapping[str, str]], Mapping[str, str]]
EditEntry = Callable[[Fields | None], Fields | None]


class Controllership(NamedTuple):
    """The right to write as the controller. ``guard`` is the key and version that the store checks at each write."""

    record: ControllerRecord
    guard: tuple[str, int]


class Catalog:
    """The image and the operations that change it. The caller opens the store before and closes it after.

    Between calls the image holds the results of our own operations, and those of others up to the last report of the
    watch. Operations raise StoreUnavailable, and VersionConflict after too many conflicts in a row.
    """

    def __init__(self, store: MetadataStore, node_id: BrokerId | None = None, listener: str = "") -> None:
        """``node_id`` selects the deletions of one broker; None selects those of all.

        ``listener`` is the one that brokers use among themselves; empty: the address that each has registered for it.
        """
        self._store = store
        self._node_id = node_id
        self._current = CurrentImage(store, listener)

    async def open(self) -> None:
        """Loads the image, creates the cluster id on first use, and finishes deletions that a crash interrupted."""
        await self._current.open()

    async def close(self) -> None:
        await self._current.close()

    @property
    def image(self) -> ClusterImage:
        """The cluster as it is known now. Empty before ``open``."""
        return self._current.image

    def on_change(self, callback: OnChange) -> None:
        """Calls ``callback(old, new)`` whenever the image is replaced, in the same step of the event loop."""
        self._current.on_change(callback)

    async def reload(self) -> None:
        """Reads the image again, after an absence during which the watch may have missed changes."""
        await self._current.reload()

    @property
    def pending_deletions(self) -> Mapping[uuid.UUID, str]:
        """Names by id of deleted topics whose files may still exist here. ``deletion_done`` ends each."""
        return {
            topic_id: deletion.name
            for topic_id, deletion in self._current.deletions.items()
            if self._node_id is None or not deletion.brokers or self._node_id in deletion.brokers
        }

    def deletions_waiting_for(self, broker_id: BrokerId) -> list[uuid.UUID]:
        """Returns the deleted topics whose files this broker has not removed yet."""
        return [topic_id for topic_id, deletion in self._current.deletions.items() if broker_id in deletion.brokers]

    def check_new_topic(self, name: str) -> None:
        """Raises KafkaError for a name that ``create_topic`` would refuse, by the current image."""
        check_topic_name(name)
        if name in self.image.topics:
            raise _already_exists(name)
        other = self.image.names_by_metric_name.get(metric_name(name))
        if other is not None:
            raise KafkaError(
                ErrorCode.invalid_topic_exception,
                f"Topic '{name}' collides with existing topic '{other}': '.' and '_' are the same in metric names.",
            )

    async def create_topic(
        self, name: str, assignments: Sequence[Sequence[BrokerId]], config: Mapping[str, str] | None = None
    ) -> TopicRecord:
        """Creates a topic with one partition per assignment. The first replica of each leads."""
        async with self._current.lock:
            self.check_new_topic(name)
            key = layout.topic_key(name)
            topic, value = await maybe_in_thread(
                lambda: _new_topic(name, assignments, config), is_large=len(assignments) > MANY_PARTITIONS
            )
            try:
                version = await self._store.put(key, value, expected_version=MUST_NOT_EXIST)
            except VersionConflict:
                # Another broker was first. The image gets the topic at once, so that the caller finds it there.
                self._current.set_image(layout.image_after(self.image, key, await self._store.get(key)))
                raise _already_exists(name) from None
            topic = replace(topic, version=version)
            self._current.set_image(self.image.with_topic(topic))
            return topic

    async def delete_topic(self, name: str, topic_id: uuid.UUID | None = None) -> TopicRecord:
        """Marks the topic for deletion, then removes it. Call ``deletion_done`` when its files are removed.

        With ``topic_id``, raises UNKNOWN_TOPIC_ID if another topic has taken the name.

        The mark is written first, so that no crash leaves files that no mark covers. From then on the topic will be
        deleted, whatever happens: the watch, or the next ``open``, continues where this stopped. So after
        StoreUnavailable the topic may still be deleted later.
        """
        if not is_topic_name(name):
            raise _unknown(name)
        async with self._current.lock:
            entry = await self._store.get(layout.topic_key(name))
            topic = await maybe_in_thread(lambda: _topic(name, entry), is_large=_is_large(entry))
            if topic_id not in (None, topic.topic_id):
                raise KafkaError(ErrorCode.unknown_topic_id, f"Topic '{name}' now has another id.")
            holders = sorted({broker for partition in topic.partitions for broker in partition.replicas})
            deletion = layout.Deletion(name, tuple(holders))
            await self._store.put(layout.deletion_key(topic.topic_id), deletion.encode())
            self._current.deletions = {**self._current.deletions, topic.topic_id: deletion}
            await self._current.remove_topic(topic)
            return topic

    async def deletion_done(self, topic_id: uuid.UUID, broker_id: BrokerId | None = None) -> None:
        """Records that a broker has removed the topic's files, or that ``broker_id`` never returns.

        The mark is removed with its last broker, so that a broker that was away finds it when it returns.
        """
        done = self._node_id if broker_id is None else broker_id
        async with self._current.lock:
            mark = layout.deletion_key(topic_id)
            for _ in range(ATTEMPTS):
                try:
                    entry = await self._remove_holder(mark, done)
                except VersionConflict:
                    continue
                self._current.deletions = layout.deletions_after(self._current.deletions, mark, entry)
                return
            raise too_many_conflicts(mark)

    async def _remove_holder(self, mark: str, done: BrokerId | None) -> Versioned | None:
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
        """Adds partitions to a topic that has ``current_count``. Raises INVALID_PARTITIONS if the number has changed.

        Without that check, two racing requests for "three partitions" would make five.
        """
        added = await maybe_in_thread(lambda: _new_partitions(assignments), is_large=len(assignments) > MANY_PARTITIONS)

        def grown(topic: TopicRecord) -> TopicRecord:
            if len(topic.partitions) != current_count:
                raise KafkaError(
                    ErrorCode.invalid_partitions,
                    f"Topic '{name}' has {len(topic.partitions)} partitions now, not {current_count}.",
                )
            return replace(topic, partitions=topic.partitions + added)

        return await self.change_topic(name, grown)

    async def alter_topic_config(self, name: str, edit: Edit) -> TopicRecord:
        """Replaces a topic's overrides by ``edit(overrides)``. If ``edit`` raises, they stay unchanged."""
        return await self.change_topic(name, lambda topic: replace(topic, config=dict(edit(topic.config))))

    async def alter_broker_config(self, owner: ConfigOwner, edit: Edit) -> Mapping[str, str]:
        """Replaces the overrides of one broker, or of CLUSTER_DEFAULT, by ``edit(overrides)``."""
        await self._alter_config(layout.config_key(owner), edit)
        return self.image.broker_config(owner)

    async def alter_group_config(self, group_id: str, edit: Edit) -> Mapping[str, str]:
        """Replaces the overrides of one group by ``edit(overrides)``. The group need not exist."""
        await self._alter_config(layout.group_config_key(group_id), edit)
        return self.image.group_config(group_id)

    async def _alter_config(self, key: str, edit: Edit) -> None:
        def edited(entry: Versioned | None) -> bytes:
            return layout.encode_config(edit({} if entry is None else layout.decode_config(key, entry.value)))

        async with self._current.lock:
            entry = await update(self._store, key, edited)
            self._current.set_image(layout.image_after(self.image, key, entry))

    async def alter_entry(self, kind: str, name: str, edit: EditEntry) -> Fields | None:
        """Replaces the entry of a user, an ACL or a quota by ``edit(fields)``; None removes it, or says there is none.

        Returns the fields as they are now. If ``edit`` raises, they stay unchanged.
        """
        key = layout.entry_key(kind, name)
        async with self._current.lock:
            for _ in range(ATTEMPTS):
                entry = await self._store.get(key)
                before = None if entry is None else layout.decode_entry(key, entry.value)
                after = edit(before)
                try:
                    written = await self._write_entry(key, entry, before, after)
                except VersionConflict:
                    continue
                self._current.set_image(layout.image_after(self.image, key, written))
                return after
            raise too_many_conflicts(key)

    async def _write_entry(
        self, key: str, entry: Versioned | None, before: Fields | None, after: Fields | None
    ) -> Versioned | None:
        if after == before:
            return entry
        if after is None:
            assert entry is not None
            await self._store.delete(key, expected_version=entry.version, keeps_version=True)
            return None
        value = layout.encode_entry(after)
        expected_version = MUST_NOT_EXIST if entry is None else entry.version
        return Versioned(value, await self._store.put(key, value, expected_version=expected_version))

    async def allocate_producer_ids(self, count: int = PRODUCER_ID_BLOCK) -> range:
        """Allocates producer ids that are never given out again. A crash loses the unused ones of the block."""
        return await self._advance_counter(layout.PRODUCER_IDS, count)

    async def register_broker(self, broker: BrokerRecord, *, patience_s: float = 0) -> BrokerRecord:
        """Registers the broker while our session lasts. Returns its record with its epoch.

        Raises StartupError if another process uses the id. ``patience_s`` is how long the session of a dead process may
        stay in the store.
        """
        registered = replace(broker, epoch=(await self._advance_counter(layout.BROKER_EPOCHS, 1)).start)
        key, deadline = layout.broker_key(broker.id), time.monotonic() + patience_s
        is_waiting = False
        while True:
            try:
                async with self._current.lock:
                    await self._store.put_ephemeral(key, registered.encode())
                    self._current.set_image(self.image.with_broker(registered))
                return registered
            except VersionConflict:
                if time.monotonic() >= deadline:
                    raise await self._id_is_taken(registered) from None
            if not is_waiting:
                logger.info("broker %d is already registered; waiting for that session to end", broker.id)
            is_waiting = True
            await asyncio.sleep(REGISTRATION_PAUSE_S)

    async def wait_until_free(self, broker: BrokerRecord, *, patience_s: float = 0) -> None:
        """Waits until no session has the broker's id. Raises StartupError if one still has it after ``patience_s``."""
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
        """Updates the record of a broker that we registered. Raises VersionConflict if the registration is gone."""
        key = layout.broker_key(broker.id)
        async with self._current.lock:
            entry = await self._store.get(key)
            if entry is None or BrokerRecord.decode(broker.id, entry.value).epoch != broker.epoch:
                raise VersionConflict(f"{key} is no longer the registration with epoch {broker.epoch}")
            await self._store.put(key, broker.encode(), expected_version=entry.version)
            self._current.set_image(self.image.with_broker(broker))

    async def is_registered(self, broker: BrokerRecord) -> bool:
        """Returns whether the store has this very registration, and thus its session is alive."""
        entry = await self._store.get(layout.broker_key(broker.id))
        async with self._current.lock:
            # Waits for a refresh that has begun, so that the image is as new as the result.
            return entry is not None and BrokerRecord.decode(broker.id, entry.value).epoch == broker.epoch

    # The controller.

    async def become_controller(self, broker_id: BrokerId) -> Controllership | None:
        """Becomes the controller while our session lasts. Returns None if another broker is the controller."""
        async with self._current.lock:
            if not await self._controller_key_is_free(broker_id):
                return None
            entry = await self._store.get(layout.CONTROLLER_EPOCH)
            epoch = 1 + _counter(layout.CONTROLLER_EPOCH, entry)
            record = ControllerRecord(broker_id, epoch)
            try:
                await self._store.put_ephemeral(layout.CONTROLLER, record.encode())
                # Fences the previous controller, also one that was only frozen.
                version = await self._store.put(
                    layout.CONTROLLER_EPOCH,
                    encode_fields(next=epoch),
                    expected_version=MUST_NOT_EXIST if entry is None else entry.version,
                )
            except VersionConflict:
                return None
            self._current.set_image(self.image.with_controller(record))
            return Controllership(record, (layout.CONTROLLER_EPOCH, version))

    async def _controller_key_is_free(self, broker_id: BrokerId) -> bool:
        entry = await self._store.get(layout.CONTROLLER)
        if entry is None:
            return True
        if ControllerRecord.decode(entry.value).broker_id != broker_id:
            return False
        # Our own key, from an attempt whose result was lost.
        try:
            return await self._store.delete(layout.CONTROLLER, expected_version=entry.version)
        except VersionConflict:
            return False

    async def resign(self, controllership: Controllership) -> None:
        """Stops being the controller, if we still are."""
        entry = await self._store.get(layout.CONTROLLER)
        if entry is not None and ControllerRecord.decode(entry.value) == controllership.record:
            with contextlib.suppress(VersionConflict):
                await self._store.delete(layout.CONTROLLER, expected_version=entry.version)

    async def put_topics(self, controllership: Controllership, topics: Sequence[TopicRecord]) -> list[str]:
        """Writes topics as the controller, each only if it is still at ``version``. Returns the names of the others.

        Raises Fenced, with nothing written, if there is a newer controller.
        """
        async with self._current.lock:
            entries = await maybe_in_thread(
                lambda: [Put(layout.topic_key(topic.name), topic.encode(), topic.version) for topic in topics],
                is_large=sum(len(topic.partitions) for topic in topics) > MANY_PARTITIONS,
            )
            results = await self._store.put_many(entries, guard=controllership.guard)
            written = [replace(t, version=v) for t, v in zip(topics, results, strict=True) if isinstance(v, int)]
            self._current.set_image(self.image.with_topics(written))
        return [topic.name for topic, result in zip(topics, results, strict=True) if not isinstance(result, int)]

    async def _advance_counter(self, key: str, count: int) -> range:
        """Advances the counter at ``key`` by ``count`` and returns the numbers passed."""
        entry = await update(self._store, key, lambda entry: encode_fields(next=_counter(key, entry) + count))
        end = _counter(key, entry)
        return range(end - count, end)

    async def change_topic(
        self, name: str, change: Callable[[TopicRecord], TopicRecord], *, always_write: bool = False
    ) -> TopicRecord:
        """Replaces a topic by ``change(topic)``, which is called again after a conflict with another writer.

        If ``change`` returns the same topic, nothing is written, unless ``always_write`` (see ``update``). If it
        raises, the topic stays unchanged. The image does not change between the last call of ``change`` and the write.
        """
        if not is_topic_name(name):
            raise _unknown(name)
        key = layout.topic_key(name)
        async with self._current.lock:
            entry = await update(
                self._store, key, lambda entry: _changed(name, entry, change), always_write=always_write
            )
            image = self.image
            changed = await maybe_in_thread(lambda: layout.image_after(image, key, entry), is_large=_is_large(entry))
            self._current.set_image(changed)
            return self.image.topics[name]

    async def apply_elections(self, name: str, change: Callable[[TopicRecord], TopicRecord]) -> None:
        """Applies elections that another broker has read from the store. Nothing is written; the watch will follow.

        The record keeps its version, which is older than the store's, so a change that is based on it is decided again.
        A record that is read later but is older does not undo the elections.
        """
        async with self._current.lock:
            topic = self.image.topics.get(name)
            if topic is not None and (changed := change(topic)) is not topic:
                self._current.set_image(self.image.with_topic(changed))


def _new_topic(
    name: str, assignments: Sequence[Sequence[BrokerId]], config: Mapping[str, str] | None
) -> tuple[TopicRecord, bytes]:
    """Returns the record and its encoding."""
    topic = TopicRecord(name, random_id(), _new_partitions(assignments), dict(config or {}))
    return topic, topic.encode()


async def _changed(name: str, entry: Versioned | None, change: Callable[[TopicRecord], TopicRecord]) -> bytes:
    """Returns the encoded result. ``change`` runs on the event loop; a large record is coded in a thread."""
    is_large = _is_large(entry)
    changed = change(await maybe_in_thread(lambda: _topic(name, entry), is_large=is_large))
    return await maybe_in_thread(changed.encode, is_large=is_large or len(changed.partitions) > MANY_PARTITIONS)


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
        raise KafkaError(ErrorCode.invalid_partitions, "No partition is requested.")
    for replicas in assignments:
        if not replicas or len(set(replicas)) != len(replicas):
            raise KafkaError(
                ErrorCode.invalid_replica_assignment,
                f"The replicas of a partition must be one or more different brokers, not {list(replicas)}.",
            )
    return tuple(PartitionRecord.new(replicas) for replicas in assignments)
