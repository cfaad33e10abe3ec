"""What the members of a share group were given and have said, and whether it agrees with the promises of share groups.

Each worker has its own history, in the order in which things happened to it (``share_worker.py`` has the format). The
rules, for the records that a producer was told are written:

lost               somebody has accepted it, or rejected it, or it was delivered as often as the limit allows
accepted twice     one confirmed acceptance at the most, by whichever worker; none beside a confirmed rejection
delivered again    after it was accepted or rejected for certain, no delivery has a higher count. Before, one may: by a
                   leader that was frozen and does not know of the next one, which does not know of its deliveries
count              between 1 and the limit; two deliveries have the same count only if the leader changed between them,
                   for a delivery without a result is not written
count went back    after a release that was confirmed to it, a worker gets the record with a higher count
content            what is delivered is what was written at that offset
dead letters       if the group has a topic for them: one of each record that was rejected for certain, or delivered as
                   often as the limit allows and not accepted; none of a record that was accepted; never two
order of a key     if the group asks for it: no record was delivered to a worker that has noted it before an earlier
                   record of its key was acknowledged, and that was confirmed. So no two are in flight at a time, and
                   they are done with in order

An acceptance that was not confirmed may have taken effect: its worker was killed, or the response did not arrive. It
counts for ``lost`` and not for ``accepted twice``. The clocks of workers, which run on one machine, are compared for
``delivered again`` and the order of keys. A record may wait in a client before its application sees it: a delivery is
noted after the broker has made it. An acknowledgement is noted before it is sent.

No sockets and no processes here.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

_TOLD_OF_EACH_KIND = 5
_FINAL = ("accept", "reject")


class Place(NamedTuple):
    partition: int
    offset: int

    def __str__(self) -> str:
        return f"{self.partition}@{self.offset}"


@dataclass
class Delivery:
    """``said`` is None if the worker has said nothing, ``is_confirmed`` whether the broker has confirmed it."""

    worker: str
    count: int
    value: str
    said: str | None = None
    is_confirmed: bool = False
    got_at: float = 0.0
    said_at: float = 0.0


@dataclass
class _Reading:
    """What is known of a worker at the end of the lines that were read."""

    now: float = 0.0
    current: dict[Place, Delivery] = field(default_factory=dict)
    said: defaultdict[int, list[Delivery]] = field(default_factory=lambda: defaultdict(list))


@dataclass
class ShareHistory:
    """Of all workers. ``refusals`` are the errors of commits, by their text."""

    deliveries: defaultdict[Place, list[Delivery]] = field(default_factory=lambda: defaultdict(list))
    refusals: Counter[str] = field(default_factory=Counter)
    confirmed_count: int = 0
    _readings: defaultdict[str, _Reading] = field(default_factory=lambda: defaultdict(_Reading))

    def add(self, worker: str, lines: Iterable[str]) -> None:
        """Reads what a worker has written, or has written since. The last line may be cut off."""
        reading = self._readings[worker]
        for line in lines:
            if not line.endswith("\n"):
                break
            word, partition, *rest = line.rstrip("\n").split(" ", 4)
            if word == "at":
                reading.now = float(partition)
            elif word == "got":
                place = Place(int(partition), int(rest[0]))
                reading.current[place] = Delivery(worker, int(rest[1]), rest[2], got_at=reading.now)
                self.deliveries[place].append(reading.current[place])
            elif word == "says":
                delivery = reading.current[Place(int(partition), int(rest[0]))]
                delivery.said, delivery.said_at = rest[1], reading.now
                reading.said[int(partition)].append(delivery)
            else:
                self._committed(word == "confirmed", reading.said.pop(int(partition), []), " ".join(rest))

    def _committed(self, is_confirmed: bool, deliveries: list[Delivery], error: str) -> None:
        for delivery in deliveries:
            delivery.is_confirmed = is_confirmed
        if is_confirmed:
            self.confirmed_count += len(deliveries)
        else:
            self.refusals[error] += 1

    def violations(
        self,
        written: Mapping[Place, str],
        limit: int,
        leader_changes: Mapping[int, int],
        dead_letters: Mapping[Place, int] | None = None,
        key_of: Callable[[str], str] | None = None,
    ) -> list[str]:
        """``leader_changes`` are those of each partition during the run, ``dead_letters`` how many there are of each
        record; None: the group has no topic for them. ``key_of`` returns the key of a record with that value; None: the
        group asks for no order."""
        found: defaultdict[str, list[str]] = defaultdict(list)
        for place, value in written.items():
            if not self._may_be_done(place, limit, dead_letters):
                found["lost"].append(f"{place} ({value}): {self._told(place)}")
        for place, kind in self._wrong_letters(dead_letters or {}):
            found[kind].append(f"{place}: {self._told(place)}")
        if key_of is not None:
            found["order of a key"] += self._overtaken(written, key_of)
        for place, deliveries in self.deliveries.items():
            for kind in self._wrong(place, deliveries, limit, leader_changes.get(place.partition, 0)):
                found[kind].append(f"{place}: {self._told(place)}")
            for delivery in deliveries:
                if place in written and delivery.value != written[place]:
                    found["content"].append(f"{place} is {written[place]!r}, {delivery.worker} got {delivery.value!r}")
        return [
            f"{kind}, {len(details)} times: {'; '.join(details[:_TOLD_OF_EACH_KIND])}"
            for kind, details in sorted(found.items())
            if details
        ]

    def _may_be_done(self, place: Place, limit: int, dead_letters: Mapping[Place, int] | None) -> bool:
        deliveries = self.deliveries.get(place, ())
        if dead_letters is None:
            return any(one.said in _FINAL or one.count >= limit for one in deliveries)
        if place in dead_letters:
            return True
        return any(one.said == "accept" or (one.said == "reject" and not one.is_confirmed) for one in deliveries)

    def _wrong_letters(self, dead_letters: Mapping[Place, int]) -> Iterable[tuple[Place, str]]:
        for place, count in dead_letters.items():
            if count > 1:
                yield place, "two dead letters"
            if any(one.said == "accept" and one.is_confirmed for one in self.deliveries.get(place, ())):
                yield place, "a dead letter of an accepted record"

    def _overtaken(self, written: Mapping[Place, str], key_of: Callable[[str], str]) -> Iterable[str]:
        """Goes through the records of each key from the last one to the first."""
        earliest: dict[tuple[int, str], tuple[float, Place]] = {}
        for place in sorted(written, reverse=True):
            deliveries = self.deliveries.get(place, ())
            key = place.partition, key_of(written[place])
            last = max((one.said_at for one in deliveries if one.is_confirmed), default=0.0)
            if key in earliest and last > earliest[key][0]:
                later = earliest[key][1]
                yield f"{later} came before {place} was done with: {self._told(later)}; {self._told(place)}"
            if deliveries:
                first = min(one.got_at for one in deliveries), place
                earliest[key] = min(first, earliest.get(key, first))

    def _wrong(self, place: Place, deliveries: list[Delivery], limit: int, leader_changes: int) -> Iterable[str]:
        final = [one for one in deliveries if one.is_confirmed and one.said in _FINAL]
        if len(final) > 1:
            yield "accepted twice"
        if final and any(one.count > final[0].count and one.got_at >= final[0].said_at for one in deliveries):
            yield "delivered again"
        if not all(1 <= one.count <= limit for one in deliveries):
            yield "count out of range"
        if max(Counter(one.count for one in deliveries).values()) > 1 + leader_changes:
            yield "count repeated"
        released: dict[str, int] = {}
        for one in deliveries:
            if one.count <= released.get(one.worker, 0):
                yield "count went back"
            if one.is_confirmed and one.said == "release":
                released[one.worker] = one.count

    def _told(self, place: Place) -> str:
        return ", ".join(
            f"{one.worker} got count {one.count} and said {one.said}{'' if one.is_confirmed else ' (not confirmed)'}"
            for one in self.deliveries.get(place, ())
        )
