"""Reading from the nearest replica (KIP-392): a leader sends consumers to a follower in their own rack."""

from skep.base.ids import BrokerId
from skep.broker.services import Services
from skep.replication.partition.partition import Partition

SELECTOR = "RackAwareReplicaSelector"


def nearest_replica(services: Services, partition: Partition, rack_id: str) -> BrokerId | None:
    """The follower that a consumer in ``rack_id`` should read from; None: it is right where it is.

    Only the leader sends away, and only to one that is in sync and alive; of several, to the furthest one.
    """
    in_sync = partition.in_sync
    if in_sync is None or not services.config.replica_selector_class.endswith(SELECTOR):
        return None
    if services.node.rack == rack_id:
        return None
    brokers = services.catalog.image.brokers
    near = [
        (follower.log_end_offset, broker)
        for broker, follower in in_sync.followers.items()
        if broker in in_sync.isr and broker in brokers and brokers[broker].rack == rack_id
    ]
    return max(near)[1] if near else None
