"""Places the replicas of new partitions.

The brokers form a ring in which neighbours are in different places (a rack, or else a machine) as far as there are
several. Partition number ``k`` of the cluster is led by broker ``k`` of the ring, so leaders are balanced however
partitions are created. Its followers are the next brokers in the ring; a broker in a place that already has a replica
is passed over while another place has none. Each round of the ring begins one broker further on; otherwise everything
that a broker leads would have the same follower, which would have to take over all of it when the leader dies.

Six brokers in the places a, b and c, three replicas::

    ring        1a 3b 5c 2a 4b 6c
    k = 0       1a 3b 5c
    k = 1       3b 5c 2a
    k = 6       1a 5c 4b        second round: the follower next to the leader is passed over
"""

from collections.abc import Iterable, Sequence

from skep.base.errors import ErrorCode, KafkaError
from skep.base.ids import BrokerId
from skep.metadata.model import BrokerRecord


def place(
    brokers: Iterable[BrokerRecord],
    count: int,
    replication_factor: int,
    *,
    start: int = 0,
    after: BrokerId | None = None,
) -> list[list[BrokerId]]:
    """Returns replicas for ``count`` partitions; the first of each leads. Stopping brokers get none.

    ``start`` is the number of existing partitions, so that topics of one partition do not all begin with the same
    broker. ``after`` is the broker that leads the last partition of a topic that grows: the next broker leads the first
    new one. Raises INVALID_REPLICATION_FACTOR when there are fewer brokers than replicas.
    """
    ring = ring_of(brokers)
    if replication_factor > len(ring):
        raise KafkaError(
            ErrorCode.invalid_replication_factor,
            f"Unable to replicate the partition {replication_factor} time(s): The target replication factor of "
            f"{replication_factor} cannot be reached because only {len(ring)} broker(s) are registered.",
        )
    for position, broker in enumerate(ring):
        if broker.id == after:
            start += (position + 1 - start) % len(ring)
    return [_replicas(ring, number, replication_factor) for number in range(start, start + count)]


def ring_of(brokers: Iterable[BrokerRecord]) -> list[BrokerRecord]:
    """Returns the brokers that are not stopping, alternating between places: the first of each place, then the second
    ..."""
    turns: dict[str, int] = {}
    keyed = []
    for broker in sorted((one for one in brokers if not one.stopping), key=lambda broker: broker.id):
        turn = turns.get(broker.place, 0)
        turns[broker.place] = turn + 1
        keyed.append((turn, broker.place, broker))
    return [broker for _, _, broker in sorted(keyed, key=lambda entry: entry[:2])]


def _replicas(ring: Sequence[BrokerRecord], number: int, replication_factor: int) -> list[BrokerId]:
    rounds, position = divmod(number, len(ring))
    others = len(ring) - 1
    leader = ring[position]
    order = [ring[(position + 1 + (rounds + step) % others) % len(ring)] for step in range(others)]
    chosen, places = [leader], {leader.place}
    # First one replica per place; when every place has one, the next brokers in order.
    for broker in order:
        if len(chosen) < replication_factor and broker.place not in places:
            chosen.append(broker)
            places.add(broker.place)
    for broker in order:
        if len(chosen) < replication_factor and broker not in chosen:
            chosen.append(broker)
    return [broker.id for broker in chosen]
