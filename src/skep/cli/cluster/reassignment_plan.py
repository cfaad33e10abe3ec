"""Reassignment plans: which brokers are to hold which partitions, in the file format of kafka-reassign-partitions.

Pure functions. A plan moves as few replicas as possible. A replica that has to move goes to the broker with the fewest
replicas, preferably in a place (a rack, or else a host) that has no replica of that partition yet.
"""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from skep.base.ids import TopicPartition
from skep.cli.failures import UsageError

Assignment = dict[TopicPartition, tuple[int, ...]]
"""The replicas of each partition; the first one is the preferred leader."""


def rotated(partitions: Iterable[TopicPartition], replicas: Sequence[int]) -> Assignment:
    """Places all partitions on the same brokers, and rotates the preferred leader from partition to partition."""
    turns = {where: number % len(replicas) for number, where in enumerate(partitions)}
    return {where: (*replicas[turn:], *replicas[:turn]) for where, turn in turns.items()}


def spread(current: Assignment, places: Mapping[int, str], replication_factor: int | None = None) -> Assignment:
    """Spreads replicas and leaders evenly over the brokers of ``places``. Returns only the partitions that change."""
    wanted: dict[TopicPartition, list[int]] = {}
    for where, replicas in sorted(current.items()):
        factor = replication_factor or len(replicas)
        _check_enough(where, factor, places)
        wanted[where] = [broker for broker in replicas if broker in places][:factor]
    load = Counter(dict.fromkeys(places, 0))
    for kept in wanted.values():
        load.update(kept)
    for where, kept in wanted.items():
        factor = replication_factor or len(current[where])
        while len(kept) < factor:
            _add_replica(kept, load, places)
    _Holdings(wanted, load, places).level()
    _share_leaders(wanted, current)
    return {where: tuple(replicas) for where, replicas in wanted.items() if tuple(replicas) != current[where]}


def drained(current: Assignment, broker: int, places: Mapping[int, str]) -> Assignment:
    """Moves all replicas off ``broker`` to the brokers of ``places``. ``current`` holds all partitions."""
    others = {other: place for other, place in places.items() if other != broker}
    load = Counter(dict.fromkeys(others, 0))
    leads: Counter[int] = Counter()
    for replicas in current.values():
        load.update(other for other in replicas if other in others)
        leads[replicas[0]] += 1
    plan = {}
    for where, replicas in sorted(current.items()):
        if broker not in replicas:
            continue
        _check_enough(where, len(replicas), others)
        kept = [other for other in replicas if other != broker]
        _add_replica(kept, load, others)
        if replicas[0] == broker:
            first = min(kept, key=lambda other: (leads[other], kept.index(other)))
            leads[first] += 1
            kept = [first, *(other for other in kept if other != first)]
        plan[where] = tuple(kept)
    return plan


def _check_enough(where: TopicPartition, factor: int, brokers: Mapping[int, str]) -> None:
    if factor > len(brokers):
        available = {0: "no other broker is", 1: "only one is"}.get(len(brokers), f"only {len(brokers)} are")
        needed = "1 broker" if factor == 1 else f"{factor} brokers"
        raise UsageError(f"{where} needs {needed} for its replicas, and {available} available")


def _add_replica(kept: list[int], load: "Counter[int]", places: Mapping[int, str]) -> None:
    taken = Counter(places.get(broker) for broker in kept)
    best = min(
        (broker for broker in places if broker not in kept),
        key=lambda broker: (taken[places[broker]], load[broker], broker),
    )
    kept.append(best)
    load[best] += 1


class _Holdings:
    """An unfinished plan, by partition and by broker. ``level`` moves replicas from fuller to emptier brokers."""

    def __init__(
        self, wanted: dict[TopicPartition, list[int]], load: "Counter[int]", places: Mapping[int, str]
    ) -> None:
        self.wanted, self.load, self.places = wanted, load, places
        self.held: dict[int, dict[TopicPartition, None]] = {broker: {} for broker in places}
        for where, replicas in wanted.items():
            for broker in replicas:
                self.held[broker][where] = None

    def level(self) -> None:
        """Moves replicas until brokers differ by at most one, or racks forbid further moves.

        First, brokers above the average give to brokers below it until one of the two reaches it. Then single replicas
        are moved.
        """
        average = sum(self.load.values()) / len(self.places)
        for fuller, emptier in self._by_need():
            self._give(fuller, emptier, int(min(self.load[fuller] - average, average - self.load[emptier])))
        while any(self._give(f, e, 1) for f, e in self._by_need() if self.load[f] - self.load[e] > 1):
            pass

    def _by_need(self) -> list[tuple[int, int]]:
        by_load = sorted(self.places, key=lambda broker: (self.load[broker], broker))
        return [(fuller, emptier) for fuller in reversed(by_load) for emptier in by_load if fuller != emptier]

    def _give(self, fuller: int, emptier: int, count: int) -> int:
        """Moves up to ``count`` replicas and returns how many were moved."""
        moved = 0
        for where in list(self.held[fuller]) if count > 0 else ():
            replicas = self.wanted[where]
            if emptier in replicas or not _keeps_apart(replicas, fuller, emptier, self.places):
                continue
            replicas[replicas.index(fuller)] = emptier
            del self.held[fuller][where]
            self.held[emptier][where] = None
            moved += 1
            if moved == count:
                break
        self.load[fuller] -= moved
        self.load[emptier] += moved
        return moved


def _keeps_apart(replicas: Sequence[int], leaving: int, coming: int, places: Mapping[int, str]) -> bool:
    """Returns whether the replicas are in at least as many places as before."""
    after = {places[broker] for broker in replicas if broker != leaving} | {places[coming]}
    return len(after) >= len({places[broker] for broker in replicas})


def _share_leaders(wanted: dict[TopicPartition, list[int]], current: Assignment) -> None:
    """Puts the preferred leader first: the current one, unless another replica leads at least two partitions less."""
    leads: Counter[int] = Counter()
    for where, replicas in wanted.items():
        if current[where][0] in replicas:
            _put_first(replicas, current[where][0])
        leads[replicas[0]] += 1
    changed = True
    while changed:
        changed = False
        for replicas in wanted.values():
            idlest = min(replicas, key=lambda broker: (leads[broker], broker))
            if leads[replicas[0]] - leads[idlest] > 1:
                leads[replicas[0]] -= 1
                leads[idlest] += 1
                _put_first(replicas, idlest)
                changed = True


def _put_first(replicas: list[int], first: int) -> None:
    replicas.remove(first)
    replicas.insert(0, first)


def read_plan(text: str, name: str) -> Assignment:
    """``{"version": 1, "partitions": [{"topic": "orders", "partition": 0, "replicas": [1, 2, 3]}]}``."""
    try:
        document = json.loads(text)
        rows = document["partitions"]
        version = document.get("version", 1)
        plan = {
            TopicPartition(_text(row["topic"]), _number(row["partition"])): tuple(map(_number, row["replicas"]))
            for row in rows
        }
    except ValueError as error:
        raise UsageError(f"{name} is not a plan: {error}") from None
    except (KeyError, TypeError, AttributeError):
        form = '{"version": 1, "partitions": [{"topic": "T", "partition": 0, "replicas": [1, 2, 3]}]}'
        raise UsageError(f"{name} is not a plan; expected {form}") from None
    if version != 1:
        raise UsageError(f"{name}: version {version} is not supported, only version 1")
    if len(plan) < len(rows):
        raise UsageError(f"{name} names a partition twice")
    for where, replicas in plan.items():
        if not replicas or len(set(replicas)) < len(replicas):
            raise UsageError(f"{name}: {where} has no replica, or one broker twice")
    return plan


def _number(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"{json.dumps(value)} is not the number of a partition or broker")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError(f"{json.dumps(value)} is not the name of a topic")
    return value


def plan_document(plan: Mapping[TopicPartition, Sequence[int]]) -> dict[str, Any]:
    """Returns the document that ``read_plan`` and Kafka's own tool read."""
    rows = [
        {"topic": where.topic, "partition": where.partition, "replicas": list(replicas)}
        for where, replicas in plan.items()
    ]
    return {"version": 1, "partitions": rows}


def parse_brokers(text: str) -> tuple[int, ...]:
    """``1,2,3``."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdecimal() for part in parts) or len(set(parts)) < len(parts):
        raise UsageError(f"'{text}' is not a list of different broker ids like 1,2,3")
    return tuple(map(int, parts))
