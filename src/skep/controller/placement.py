"""Which brokers hold the copies of new partitions.

The brokers stand in a ring in which neighbours are in different places (a rack, or else a machine) as far as there are
several. Partition number ``k`` of the cluster is led by broker ``k`` of the ring, so leaders are even however
partitions come. Its followers are found by going on from there, past brokers in a place that has a copy while another
place has none. Every time around the ring they begin one broker further on; otherwise all that one broker leads would
have the same follower, which would have to carry all of it alone when that one dies.

Six brokers in the places a, b and c, three replicas::

    ring        1a 3b 5c 2a 4b 6c
    k = 0       1a 3b 5c
    k = 1       3b 5c 2a
    k = 6       1a 5c 4b        once around: the follower next to the leader is passed over
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
    """Replicas for ``count`` partitions, the first of each to lead. Brokers that are stopping get none.

    ``start`` is the number of partitions that there are, so that topics of one partition do not all begin with the same
    broker. ``after`` is the broker that leads the last partition of a topic that grows: the next one leads the first
    new one. INVALID_REPLICATION_FACTOR when there are fewer brokers than replicas.
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
    """Those that are not stopping, place by place in turn: the first of each place, then the second of each ..."""
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
    # First one copy per place; when every place has one, whoever comes next.
    for broker in order:
        if len(chosen) < replication_factor and broker.place not in places:
            chosen.append(broker)
            places.add(broker.place)
    for broker in order:
        if len(chosen) < replication_factor and broker not in chosen:
            chosen.append(broker)
    return [broker.id for broker in chosen]
