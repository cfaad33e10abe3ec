"""Brokers that left the cluster a moment ago. Metadata responses that name topics still list them.

librdkafka drops a broker that a response no longer lists, and with it the partitions that it had there, also those
whose new leader is in the same response. It then finds that leader only a second later, with its next request. So a
broker stays in such responses for a while after it has lost its leaderships.
"""

from skep.base.clock import Clock
from skep.base.ids import BrokerId
from skep.metadata.catalog import Catalog
from skep.metadata.cluster_image import ClusterImage
from skep.metadata.model import BrokerRecord

STILL_LISTED_S = 3.0
"""librdkafka checks once a second for partitions whose leader is down."""


class DepartedBrokers:
    """Owns the departed brokers, each with the time at which this broker saw it leave."""

    def __init__(self, catalog: Catalog, clock: Clock) -> None:
        self._clock = clock
        self._brokers: dict[BrokerId, tuple[BrokerRecord, float]] = {}
        catalog.on_change(self._image_changed)

    def recent(self) -> list[BrokerRecord]:
        if not self._brokers:
            return []
        now = self._clock.monotonic()
        self._brokers = {key: value for key, value in self._brokers.items() if now - value[1] < STILL_LISTED_S}
        return [broker for broker, _ in self._brokers.values()]

    def _image_changed(self, old: ClusterImage, new: ClusterImage) -> None:
        if new.brokers is old.brokers:
            return
        for broker_id, broker in old.brokers.items():
            if broker_id not in new.brokers:
                self._brokers[broker_id] = (broker, self._clock.monotonic())
        for broker_id in new.brokers:
            self._brokers.pop(broker_id, None)
