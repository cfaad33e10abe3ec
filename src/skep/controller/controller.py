"""The broker that elects leaders for all: how it comes to be the one, and how its decisions get written.

Every broker runs this. The one whose ephemeral key is in the store decides; the others wait for the key to go. Whoever
has been succeeded without having noticed (frozen, cut off) is stopped by the store itself, for each of its writes is
guarded by the version of ``controller-epoch``.

There is nothing to hand over from one controller to the next: what is to be done follows from the image alone.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence

from skep.base.clock import Clock
from skep.base.config.broker_config import BrokerConfig
from skep.base.errors import Fenced, StoreUnavailable, VersionConflict
from skep.base.ids import BrokerId
from skep.base.loop.slicer import Slicer
from skep.base.loop.supervisor import Supervisor
from skep.controller.decisions import changed_topics, describe, is_unclean, preferred_elections, waited_for
from skep.controller.internal_topic_growth import grown_topics
from skep.metadata.catalog import Catalog, Controllership
from skep.metadata.cluster_image import ClusterImage
from skep.metadata.model import ControllerRecord, TopicRecord

logger = logging.getLogger(__name__)

RETRY_PAUSE_S = 0.5
TOPICS_PER_WRITE = 10_000
"""Few large writes: each one that changes more than a few hundred topics makes every broker read all of them anew."""


class Controller:
    """Owns the task that decides. Between its passes ``_decided`` is the image for which all is decided and written.

    Whatever was not written (a conflict, the store away) shows as a difference between that image and the one of now,
    so it is decided again, from what is there by then.
    """

    def __init__(
        self,
        catalog: Catalog,
        node_id: BrokerId,
        settings: Callable[[], BrokerConfig],
        clock: Clock,
        slicer: Slicer | None = None,
    ) -> None:
        """``settings`` gives the broker's options as they are at that moment."""
        self._catalog = catalog
        self._node_id = node_id
        self._settings = settings
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
        """Begin to take part; this broker may be elected from when it is registered on."""
        self._news.set()
        # By repeat, so that a pass that fails for a reason nobody thought of is not the last one.
        self._tasks.repeat(lambda: 0, self._decide_on_news)
        self._tasks.repeat(lambda: self._settings().leader_imbalance_check_interval_seconds * 1000, self._balance_soon)

    async def stop(self) -> None:
        """Decide nothing any more, and let another broker do it at once."""
        await self._tasks.close()
        held, self._controllership = self._controllership, None
        if held is not None:
            try:
                await self._catalog.resign(held)
            except StoreUnavailable as error:
                logger.warning("could not resign as the controller, another takes over when we are gone: %s", error)

    def image_changed(self, old: ClusterImage, new: ClusterImage) -> None:
        """To be called for each change of the catalog's image; what changed is looked at later, for many at once."""
        self._news.set()

    def session_ended(self) -> None:
        """Our keys in the store are gone, the one that makes us controller among them."""
        self._step_down("the session with the metadata store ended")
        self._news.set()

    async def _balance_soon(self) -> None:
        # Not saved up by one who is not the controller: the first thing a new one does would be to move leaders again.
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
            logger.warning("controller: %s; trying again", error)
            await self._look_again()

    async def _look_again(self) -> None:
        self._news.set()
        await asyncio.sleep(RETRY_PAUSE_S)

    async def _become_or_stay_controller(self) -> None:
        image = self._catalog.image
        if self._controllership is not None and image.controller != self._controllership.record:
            self._step_down("the store says so")
        if self._controllership is not None or not self._may_stand(image):
            return
        self._controllership = await self._catalog.become_controller(self._node_id)
        if self._controllership is None:
            # Another was faster. It may be gone again before our image has ever shown it, and then no news would come.
            await self._look_again()
        else:
            self._decided = None  # whatever was decided before: a new controller looks at everything
            logger.info("broker %d is the controller, epoch %d", self._node_id, self._controllership.record.epoch)

    def _may_stand(self, image: ClusterImage) -> bool:
        """Nobody is controller, or we are without having learned of it; and we are here to stay."""
        record, node = image.controller, image.brokers.get(self._node_id)
        # An image that still shows us as what we are no longer is old. Standing on it would depose who came after us.
        is_free = record is None or (record.broker_id == self._node_id and record != self._ended)
        return is_free and node is not None and not node.stopping

    def _step_down(self, reason: str) -> None:
        if self._controllership is not None:
            logger.info("broker %d is not the controller any more: %s", self._node_id, reason)
            self._ended = self._controllership.record
        self._controllership = None

    async def _decide(self, controllership: Controllership) -> None:
        began, image = self._clock.monotonic(), self._catalog.image
        default = self._settings().topic_defaults.unclean_leader_election_enable
        changed = await self._slicer.finish(
            changed_topics(image, self._to_look_at(image), lambda topic: is_unclean(topic, default))
        )
        if self._decided is not None and image.brokers.keys() - self._decided.brokers.keys():
            changed = grown_topics(image, self._settings().internal_replication_factors, changed)
        await self._write(controllership, image, changed, began)
        if self._decided is None or self._decided.brokers != image.brokers:
            await self._say_who_is_missing(image)
        # Not the image of now, in which there may be changes that came while this was written.
        self._decided = image
        if self._balance_is_due:
            self._balance_is_due = False
            await self._balance(controllership)

    def _to_look_at(self, image: ClusterImage) -> Iterable[TopicRecord]:
        before = self._decided
        # The options of brokers say what holds for topics that have set nothing of their own.
        if before is None or before.brokers != image.brokers or before.broker_configs != image.broker_configs:
            return image.topics.values()
        return [topic for name, topic in image.topics.items() if before.topics.get(name) is not topic]

    async def _say_who_is_missing(self, image: ClusterImage) -> None:
        for broker, count in sorted((await self._slicer.finish(waited_for(image))).items()):
            logger.warning(
                "controller: %d partitions without a leader wait for broker %d, which may have records that nobody else"
                " has; if it never comes back, 'skep cluster elect --unclean' gives it up",
                count,
                broker,
            )

    async def _balance(self, controllership: Controllership) -> None:
        settings, image = self._settings(), self._catalog.image
        if settings.auto_leader_rebalance_enable:
            began = self._clock.monotonic()
            percentage = settings.leader_imbalance_per_broker_percentage
            changed = await self._slicer.finish(preferred_elections(image, above_percentage=percentage))
            await self._write(controllership, image, changed, began)

    async def _write(
        self, controllership: Controllership, image: ClusterImage, changed: Sequence[TopicRecord], began: float
    ) -> None:
        lost = 0
        for start in range(0, len(changed), TOPICS_PER_WRITE):
            part = changed[start : start + TOPICS_PER_WRITE]
            # Who was faster has changed the topic, or has deleted it; either way we hear of it, and decide again.
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
