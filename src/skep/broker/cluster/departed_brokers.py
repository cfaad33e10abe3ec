"""Brokers that were registered a moment ago: clients that ask where a topic's leaders are now are still told of them.

librdkafka drops a broker that an answer no longer names, and with it the partitions that it has there, also those whose
new leader the same answer gives: it then finds that leader a second later, when it asks again. So a broker that died
leaves such answers a little after the leadership has left it.
"""

from skep.base.clock import Clock
from skep.base.ids import BrokerId
from skep.metadata.catalog import Catalog
from skep.metadata.cluster_image import ClusterImage
from skep.metadata.model import BrokerRecord

STILL_NAMED_S = 3.0
"""librdkafka looks once a second for partitions whose leader is down."""


class Departed:
    """Owns when each of them was last there, as far as this broker has heard."""

    def __init__(self, catalog: Catalog, clock: Clock) -> None:
        self._clock = clock
        self._brokers: dict[BrokerId, tuple[BrokerRecord, float]] = {}
        catalog.on_change(self._image_changed)

    def still_named(self) -> list[BrokerRecord]:
        if not self._brokers:
            return []
        now = self._clock.monotonic()
        self._brokers = {key: value for key, value in self._brokers.items() if now - value[1] < STILL_NAMED_S}
        return [broker for broker, _ in self._brokers.values()]

    def _image_changed(self, old: ClusterImage, new: ClusterImage) -> None:
        if new.brokers is old.brokers:
            return
        for broker_id, broker in old.brokers.items():
            if broker_id not in new.brokers:
                self._brokers[broker_id] = (broker, self._clock.monotonic())
        for broker_id in new.brokers:
            self._brokers.pop(broker_id, None)
