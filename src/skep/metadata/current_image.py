"""The image of now: loaded once, then kept up with the store, whoever writes there.

Also finishes deletions. A topic with a deletion mark is going, whoever set the mark and wherever they stopped: any
broker that sees the mark and the topic removes the topic.
"""

import asyncio
import logging
import uuid
from collections.abc import Callable
from functools import partial

from skep.base.errors import StoreUnavailable, VersionConflict
from skep.base.loop.supervisor import Supervisor
from skep.base.loop.threads import run_apart
from skep.metadata import layout
from skep.metadata.cluster_image import ClusterImage
from skep.metadata.compare_and_set import ATTEMPTS, gave_up, update
from skep.metadata.metadata_store import Changed, MetadataStore, Versioned, Watch
from skep.metadata.model import TopicRecord, UnreadableRecord, decode_field, encode_fields, id_text, random_id

logger = logging.getLogger(__name__)

RETRY_PAUSE_S = 1.0
RELOAD_ABOVE_KEYS = 256
MOST_ROUNDS = 10
"""Of reading what changed while something was read; where there is always more, an image must come out all the same."""

OnChange = Callable[[ClusterImage, ClusterImage], None]


class CurrentImage:
    """Owns the image, the pending deletions, and the task that follows the watch.

    ``turn`` is held by whoever reads the store in order to change the image, over both. They await in between, and a
    refresh in that gap would put an older state over a newer one.
    """

    def __init__(self, store: MetadataStore) -> None:
        self.image = ClusterImage("")
        self.deletions: dict[uuid.UUID, layout.Deletion] = {}
        self.turn = asyncio.Lock()
        self._store = store
        self._callbacks: list[OnChange] = []
        self._tasks = Supervisor()
        self._watch: Watch | None = None

    async def open(self) -> None:
        self._watch = await self._store.watch("")  # before reading: what changes in between is then reported
        async with self.turn:
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
        """Reads all of it, whatever the watch has reported."""
        async with self.turn:
            await self._load(self.image.cluster_id)

    def become(self, image: ClusterImage) -> None:
        old, self.image = self.image, image
        if image is not old:
            for callback in self._callbacks:
                try:
                    callback(old, image)
                except Exception:
                    # A bug in one who is told, which is no reason for the others not to be, nor to stop following.
                    logger.exception("a change of the metadata was not carried out")

    async def remove_topic(self, topic: TopicRecord) -> None:
        """Remove what has this topic's name and id, in whichever version; a topic made anew under the name stays."""
        key = layout.topic_key(topic.name)
        for _ in range(ATTEMPTS):
            try:
                await self._store.delete(key, expected_version=topic.version, keeps_version=True)
                entry = None
            except VersionConflict:
                entry = await self._store.get(key)
            if entry is None:
                return self.become(self.image.without_topic(topic.name))
            decode = partial(TopicRecord.decode, topic.name, entry.value, entry.version)
            found = await run_apart(decode, if_true=len(entry.value) > layout.LARGE_RECORD)
            if found.topic_id != topic.topic_id:
                return self.become(self.image.with_topic(found))
            topic = found
        raise gave_up(key)

    async def _remove_marked_topics(self) -> None:
        for topic_id in self.deletions:
            if (topic := self.image.topics_by_id.get(topic_id)) is not None:
                logger.info("finishing the deletion of topic %s (%s)", topic.name, id_text(topic_id))
                await self.remove_topic(topic)

    async def _load(self, cluster_id: str) -> None:
        tree = await self._store.read_tree("")
        # In a thread: it takes a while with 10,000 topics, and clients may be being served.
        image = await asyncio.to_thread(layout.image_of, cluster_id, tree, self.image)
        self.deletions = layout.deletions_of(tree)
        self.become(image)

    async def _follow(self, watch: Watch) -> None:
        async for changed in watch:
            try:
                async with self.turn:
                    await self._refresh(changed, watch)
            except (StoreUnavailable, VersionConflict) as error:
                logger.warning("metadata may be out of date: %s; trying again", error)
            except Exception:
                logger.exception("metadata may be out of date; trying again")
            else:
                continue
            watch.report(changed)
            await asyncio.sleep(RETRY_PAUSE_S)

    async def _refresh(self, changed: Changed, watch: Watch | None = None) -> None:
        """Reads what changed, and goes on with what ``watch`` has heard of meanwhile.

        For what is read may be newer than what was heard of: a broker that handed its leaderships over and left is gone
        in it, although the new leaders, of whom we were told first, have not been read yet.
        """
        heard, image = changed, self.image
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
                heard = Changed(heard.keys | changed.keys, heard.missed or changed.missed)
        except BaseException:
            if watch is not None:
                watch.report(heard)  # none of it is in the image
            raise
        self.become(image)
        if watch is not None:
            watch.report(changed)  # after so many rounds there may still be something
        await self._remove_marked_topics()

    async def _read(self, image: ClusterImage, key: str) -> ClusterImage:
        entry = await self._store.get(key)
        try:
            before = image
            image = await run_apart(
                lambda: layout.image_after(before, key, entry),
                if_true=entry is not None and len(entry.value) > layout.LARGE_RECORD,
            )
            self.deletions = layout.deletions_after(self.deletions, key, entry)
        except UnreadableRecord as error:
            # Reading it again would not help; what we knew before stands.
            logger.error("%s", error)
        return image


def _cluster_or_new(entry: Versioned | None) -> bytes:
    return encode_fields(id=id_text(random_id())) if entry is None else entry.value
