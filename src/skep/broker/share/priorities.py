"""The order in which a share fetch serves the topics of its session (``skep.share.priority``).

Topics form classes: those that the group names, in that order, and last all others. Without the option all are one
class.

*Strict* (names alone): a class gets what the classes before it leave. *Weighted* (names with weights): the session
counts the records that each class got. The classes that are behind their weight are served first, each up to where it
should be; those that are ahead, because whole batches of the log are acquired, wait until the others have come up. So
no class starves, however small its weight or large the batches.
"""

from collections.abc import Collection, Mapping
from functools import lru_cache
from typing import NamedTuple

OTHERS_WEIGHT = 1
"""That of topics that are not named."""


class Priorities(NamedTuple):
    """``classes`` has the number of the class of each named topic; 0 is the first. ``weights`` is empty if strict."""

    classes: Mapping[str, int]
    weights: tuple[int, ...]

    def class_of(self, topic: str) -> int:
        return self.classes.get(topic, len(self.classes))


@lru_cache(maxsize=1000)
def priorities_of(option: tuple[str, ...]) -> Priorities:
    """Returns the meaning of the option, which was checked when it was set."""
    parts = [part.partition(":") for part in option]
    weights = tuple(int(weight) for _, _, weight in parts if weight)
    return Priorities(
        {topic: number for number, (topic, _, _) in enumerate(parts)}, (*weights, OTHERS_WEIGHT) if weights else ()
    )


class Turn(NamedTuple):
    """A class, and how many records it may get; None: all that are left."""

    number: int
    most: int | None = None


def turns(
    priorities: Priorities,
    classes: Collection[int],
    readable: Collection[int],
    served: Mapping[int, float],
    max_records: int,
) -> list[Turn]:
    """Returns the classes in the order in which they are served by a fetch of ``max_records``.

    ``readable`` are those that may have something to deliver; ``served`` counts the records that each class got. If
    those in front use what they may get, nothing is left for the classes that are ahead of their weight.
    """
    weights = priorities.weights
    if not weights:
        return [Turn(number) for number in sorted(classes)]
    total = max_records + sum(served.get(number, 0) for number in readable)
    weight = sum(weights[number] for number in readable)
    found = []
    for number in sorted(classes, key=lambda one: (served.get(one, 0) / weights[one], one)):
        most = None
        if number in readable and (behind := total * weights[number] / weight - served.get(number, 0)) > 0:
            most = max(1, round(behind))
        found.append(Turn(number, most))
    return found


def settle(priorities: Priorities, classes: Collection[int], dry: Collection[int], served: dict[int, float]) -> None:
    """Takes off what all classes got in proportion to their weights, so that only the differences are remembered.

    To be called after a fetch. A class that is ``dry``, without records although it had its turn, does not fall behind:
    it would get everything for a while when it has some.
    """
    weights = priorities.weights
    if not weights:
        served.clear()
        return
    level = min((served.get(number, 0) / weights[number] for number in classes if number not in dry), default=0)
    for number in classes:
        served[number] = max(0, served.get(number, 0) - level * weights[number])
