"""The controller: the one broker that elects leaders and writes the controller's decisions.

Every broker runs this. The one whose ephemeral key is in the store decides; the others wait for the key to disappear. A
controller that was succeeded without noticing (frozen, cut off) is fenced by the store: each of its writes is guarded
by the version of ``controller-epoch``.

Controllers hand nothing over to each other: what has to be done follows from the image alone.
"""

import asyncio
import logging
from collections.abc import Iterable, Sequence

from skep.base.clock import Clock
from skep.base.config.current_config import CurrentConfig
from skep.base.errors import Fenced, StoreUnavailable, VersionConflict
from skep.base.ids import BrokerId
from skep.base.loop.slicer import Slicer
from skep.base.loop.supervisor import Supervisor
from skep.controller.decisions import awaited_brokers, changed_topics, describe, is_unclean, preferred_elections
from skep.controller.internal_topic_growth import grown_topics
from skep.metadata.catalog import Catalog, Controllership
from skep.metadata.cluster_image import ClusterImage
from skep.metadata.model import ControllerRecord, TopicRecord

logger = logging.getLogger(__name__)

RETRY_PAUSE_S = 0.5
TOPICS_PER_WRITE = 10_000
"""Few large writes: each one that changes more than a few hundred topics makes every broker read all of them again."""


class Controller:
    """Owns the task that decides. Between its passes ``_decided`` is the image for which everything is decided and
    written.

    What could not be written (a conflict, an unavailable store) is a difference between that image and the current one,
    so it is decided again from the current image.
    """

    def __init__(
        self,
        catalog: Catalog,
        node_id: BrokerId,
        config: CurrentConfig,
        clock: Clock,
        slicer: Slicer | None = None,
    ) -> None:
        self._catalog = catalog
        self._node_id = node_id
        self._config = config
        self._clock = clock
        self._slicer = slicer or Slicer(clock)
        self._tasks = Supervisor()
        self._news = asyncio.Event()
        self._balance_is_due = False
        self._controllership: Controllership | None = None
        self._ended: ControllerRecord | None = None
        self._decided: ClusterImage | None = None

    @property
    def is_active(self) -> bool:
        """Whether this broker is the controller, as far as it knows."""
        return self._controllership is not None

    def start(self) -> None:
        """Starts. This broker may become the controller from its registration on."""
        self._news.set()
        # With ``repeat``, so that passes go on after one that failed unexpectedly.
        self._tasks.repeat(lambda: 0, self._decide_on_news)
        self._tasks.repeat(self._balance_interval_ms, self._balance_soon)

    async def stop(self) -> None:
        """Stops deciding and resigns, so that another broker can take over at once."""
        await self._tasks.close()
        held, self._controllership = self._controllership, None
        if held is not None:
            try:
                await self._catalog.resign(held)
            except StoreUnavailable as error:
                logger.warning("cannot resign as the controller, another takes over when our session ends: %s", error)

    def image_changed(self, old: ClusterImage, new: ClusterImage) -> None:
        """Must be called for each change of the image. Changes are processed later, many at once."""
        self._news.set()

    def session_ended(self) -> None:
        """Our keys in the store are gone, including the one that makes us the controller."""
        self._step_down("the session with the metadata store ended")
        self._news.set()

    def _balance_interval_ms(self) -> int:
        return self._config.value.cluster.leader_imbalance_check_interval_seconds * 1000

    async def _balance_soon(self) -> None:
        # Only on the controller: otherwise the first thing that a new controller does would be to move leaders again.
        self._balance_is_due = self.is_active
        self._news.set()

    async def _decide_on_news(self) -> None:
        await self._news.wait()
        self._news.clear()
        try:
            await self._become_or_stay_controller()
            if self._controllership is not None:
                await self._decide(self._controllership)
        except Fenced:
            self._step_down("there is a newer controller")
        except (StoreUnavailable, VersionConflict) as error:
            logger.warning("controller: %s; retrying", error)
            await self._check_again()

    async def _check_again(self) -> None:
        self._news.set()
        await asyncio.sleep(RETRY_PAUSE_S)

    async def _become_or_stay_controller(self) -> None:
        image = self._catalog.image
        if self._controllership is not None and image.controller != self._controllership.record:
            self._step_down("the store names another one")
        if self._controllership is not None or not self._may_stand(image):
            return
        self._controllership = await self._catalog.become_controller(self._node_id)
        if self._controllership is None:
            # Another broker was faster. It may be gone again before our image shows it, and then no change would wake
            # us.
            await self._check_again()
        else:
            self._decided = None  # a new controller checks everything, whatever was decided before
            logger.info("broker %d is the controller, epoch %d", self._node_id, self._controllership.record.epoch)

    def _may_stand(self, image: ClusterImage) -> bool:
        """Whether this broker may become the controller: there is none, or we are it without knowing, and we are not
        stopping."""
        record, node = image.controller, image.brokers.get(self._node_id)
        # An image that shows us as the controller that we no longer are is stale. Acting on it would depose our
        # successor.
        is_free = record is None or (record.broker_id == self._node_id and record != self._ended)
        return is_free and node is not None and not node.stopping

    def _step_down(self, reason: str) -> None:
        if self._controllership is not None:
            logger.info("broker %d is no longer the controller: %s", self._node_id, reason)
            self._ended = self._controllership.record
        self._controllership = None

    async def _decide(self, controllership: Controllership) -> None:
        began, image = self._clock.monotonic(), self._catalog.image
        default = self._config.value.topic_defaults.unclean_leader_election_enable
        changed = await self._slicer.finish(
            changed_topics(image, self._to_look_at(image), lambda topic: is_unclean(topic, default))
        )
        if self._decided is not None and image.brokers.keys() - self._decided.brokers.keys():
            changed = grown_topics(image, self._config.value.coordinator.internal_replication_factors, changed)
        await self._write(controllership, image, changed, began)
        if self._decided is None or self._decided.brokers != image.brokers:
            await self._log_awaited_brokers(image)
        # Not the current image, which may have changes that arrived during the write.
        self._decided = image
        if self._balance_is_due:
            self._balance_is_due = False
            await self._balance(controllership)

    def _to_look_at(self, image: ClusterImage) -> Iterable[TopicRecord]:
        before = self._decided
        # The options of brokers apply to topics that do not set them.
        if before is None or before.brokers != image.brokers or before.broker_configs != image.broker_configs:
            return image.topics.values()
        return [topic for name, topic in image.topics.items() if before.topics.get(name) is not topic]

    async def _log_awaited_brokers(self, image: ClusterImage) -> None:
        for broker, count in sorted((await self._slicer.finish(awaited_brokers(image))).items()):
            logger.warning(
                "controller: %d partitions without a leader wait for broker %d, which may have records that no other"
                " broker has; if it never comes back, run 'skep cluster elect --unclean' to give it up",
                count,
                broker,
            )

    async def _balance(self, controllership: Controllership) -> None:
        config, image = self._config.value.cluster, self._catalog.image
        if config.auto_leader_rebalance_enable:
            began = self._clock.monotonic()
            percentage = config.leader_imbalance_per_broker_percentage
            changed = await self._slicer.finish(preferred_elections(image, above_percentage=percentage))
            await self._write(controllership, image, changed, began)

    async def _write(
        self, controllership: Controllership, image: ClusterImage, changed: Sequence[TopicRecord], began: float
    ) -> None:
        lost = 0
        for start in range(0, len(changed), TOPICS_PER_WRITE):
            part = changed[start : start + TOPICS_PER_WRITE]
            # A faster writer has changed or deleted the topic. The image will show it, and it is decided again.
            lost += len(await self._catalog.put_topics(controllership, part))
        if changed:
            took_ms = (self._clock.monotonic() - began) * 1000
            what = await self._slicer.finish(describe((image.topics[topic.name] for topic in changed), changed))
            logger.info(
                "controller: %s; %d topics, %d of them changed by others first, %d ms",
                what,
                len(changed),
                lost,
                took_ms,
            )
