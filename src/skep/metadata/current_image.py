"""The current image: loaded once, then updated with every change in the store.

This module also finishes deletions. A topic with a deletion mark is being deleted, whichever broker set the mark and
wherever it stopped: any broker that sees both the mark and the topic removes the topic.
"""

import asyncio
import logging
import uuid
from collections.abc import Callable
from functools import partial

from skep.base.errors import StoreUnavailable, VersionConflict
from skep.base.loop.supervisor import Supervisor
from skep.base.loop.threads import maybe_in_thread
from skep.metadata import layout
from skep.metadata.cluster_image import ClusterImage
from skep.metadata.compare_and_set import ATTEMPTS, too_many_conflicts, update
from skep.metadata.metadata_store import Changed, MetadataStore, Versioned, Watch
from skep.metadata.model import TopicRecord, UnreadableRecord, decode_field, encode_fields, id_text, random_id

logger = logging.getLogger(__name__)

RETRY_PAUSE_S = 1.0
RELOAD_ABOVE_KEYS = 256
MOST_ROUNDS = 10
"""Rounds of reading keys that changed during the round before. Under constant change the image is published then."""

OnChange = Callable[[ClusterImage, ClusterImage], None]


class CurrentImage:
    """Owns the image, the pending deletions, and the task that follows the watch.

    Hold ``lock`` while reading the store and changing the image by it. There is an await in between, and a refresh in
    that gap would replace a newer state by an older one.
    """

    def __init__(self, store: MetadataStore, listener: str = "") -> None:
        """``listener`` is the one that this broker reaches others by. Their records then have its address."""
        self.image = ClusterImage("")
        self._listener = listener
        self.deletions: dict[uuid.UUID, layout.Deletion] = {}
        self.lock = asyncio.Lock()
        self._store = store
        self._callbacks: list[OnChange] = []
        self._tasks = Supervisor()
        self._watch: Watch | None = None

    async def open(self) -> None:
        self._watch = await self._store.watch("")  # before reading, so that changes in between are reported
        async with self.lock:
            cluster = await update(self._store, layout.CLUSTER, _cluster_or_new)
            await self._load(decode_field(layout.CLUSTER, cluster.value, "id"))
            await self._remove_marked_topics()
        self._tasks.spawn("metadata-image", self._follow(self._watch))

    async def close(self) -> None:
        if self._watch is not None:
            self._watch.close()
        await self._tasks.close()

    def on_change(self, callback: OnChange) -> None:
        self._callbacks.append(callback)

    async def reload(self) -> None:
        """Reads the whole store again, whatever the watch has reported."""
        async with self.lock:
            await self._load(self.image.cluster_id)

    def set_image(self, image: ClusterImage) -> None:
        if self._listener and image.brokers is not self.image.brokers:
            image = image.with_brokers_at(self._listener)
        old, self.image = self.image, image
        if image is not old:
            for callback in self._callbacks:
                try:
                    callback(old, image)
                except Exception:
                    # A bug in one callback must not keep the others from being called, nor end the task that follows.
                    logger.exception("a callback for a metadata change failed")

    async def remove_topic(self, topic: TopicRecord) -> None:
        """Removes the topic with this name and id, in any version. A new topic of the same name stays."""
        key = layout.topic_key(topic.name)
        for _ in range(ATTEMPTS):
            try:
                await self._store.delete(key, expected_version=topic.version, keeps_version=True)
                entry = None
            except VersionConflict:
                entry = await self._store.get(key)
            if entry is None:
                return self.set_image(self.image.without_topic(topic.name))
            decode = partial(TopicRecord.decode, topic.name, entry.value, entry.version)
            found = await maybe_in_thread(decode, is_large=len(entry.value) > layout.LARGE_RECORD)
            if found.topic_id != topic.topic_id:
                return self.set_image(self.image.with_topic(found))
            topic = found
        raise too_many_conflicts(key)

    async def _remove_marked_topics(self) -> None:
        for topic_id in self.deletions:
            if (topic := self.image.topics_by_id.get(topic_id)) is not None:
                logger.info("finishing the deletion of topic %s (%s)", topic.name, id_text(topic_id))
                await self.remove_topic(topic)

    async def _load(self, cluster_id: str) -> None:
        tree = await self._store.read_tree("")
        # In a thread: it takes long with 10,000 topics, and the loop may be serving clients.
        image = await asyncio.to_thread(layout.image_of, cluster_id, tree, self.image)
        self.deletions = layout.deletions_of(tree)
        self.set_image(image)

    async def _follow(self, watch: Watch) -> None:
        async for changed in watch:
            try:
                async with self.lock:
                    await self._refresh(changed, watch)
            except (StoreUnavailable, VersionConflict) as error:
                logger.warning("metadata may be out of date: %s; trying again", error)
            except Exception:
                # A bug of ours. If the task ended here, the broker would work on with stale metadata unnoticed.
                logger.exception("metadata may be out of date; trying again")
            else:
                continue
            watch.report(changed)
            await asyncio.sleep(RETRY_PAUSE_S)

    async def _refresh(self, changed: Changed, watch: Watch | None = None) -> None:
        """Reads the changed keys, then the keys that ``watch`` has reported meanwhile, until there are none.

        A key that is read may be newer than its report. Example: a broker hands over its leaderships and leaves. Its
        key may be read as deleted before the new leaders are read, although they were reported first. So the image is
        published only when no report is left.
        """
        reported, image = changed, self.image
        try:
            for _ in range(MOST_ROUNDS):
                if changed.missed or len(changed.keys) > RELOAD_ABOVE_KEYS:
                    await self._load(self.image.cluster_id)
                    image = self.image
                else:
                    for key in changed.keys:
                        image = await self._read(image, key)
                changed = Changed(frozenset()) if watch is None else watch.take()
                if not changed.keys and not changed.missed:
                    break
                reported = Changed(reported.keys | changed.keys, reported.missed or changed.missed)
        except BaseException:
            if watch is not None:
                watch.report(reported)  # the image has none of it
            raise
        self.set_image(image)
        if watch is not None:
            watch.report(changed)  # there may be some left after MOST_ROUNDS
        await self._remove_marked_topics()

    async def _read(self, image: ClusterImage, key: str) -> ClusterImage:
        entry = await self._store.get(key)
        try:
            before = image
            image = await maybe_in_thread(
                lambda: layout.image_after(before, key, entry),
                is_large=entry is not None and len(entry.value) > layout.LARGE_RECORD,
            )
            self.deletions = layout.deletions_after(self.deletions, key, entry)
        except UnreadableRecord as error:
            # Reading it again would not help. The image keeps the previous state.
            logger.error("%s", error)
        return image


def _cluster_or_new(entry: Versioned | None) -> bytes:
    return encode_fields(id=id_text(random_id())) if entry is None else entry.value
