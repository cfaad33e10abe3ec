"""Watches every single change of the state of a classic group, however it is made, against the table."""

import contextlib
from collections.abc import Iterator
from typing import Any

from skep.coordination.groups.classic.classic_group import ClassicGroup
from skep.coordination.groups.classic.classic_state import NEXT_STATES, STABLE, ClassicState


class WatchedTransitions:
    """From when it is made until ``stop``, of all classic groups there are; a change that is not allowed raises.

    A stable group may be written, and so be replayed, as a stable group: a static member has taken its own place.
    """

    def __init__(self) -> None:
        self._is_watching = True
        ClassicGroup.__setattr__ = self._watched()  # type: ignore[method-assign, assignment]

    def _watched(self) -> Any:
        def set_attribute(group: ClassicGroup, name: str, value: Any) -> None:
            if name == "state" and self._is_watching and "state" in vars(group):
                self._check(group.state, value)
            object.__setattr__(group, name, value)

        return set_attribute

    def _check(self, before: ClassicState, after: ClassicState) -> None:
        assert after in NEXT_STATES[before] or before is after is STABLE, f"{after.value} after {before.value}"

    @contextlib.contextmanager
    def unwatched(self) -> Iterator[None]:
        """While a log is read: it has only the states at rest, each of which may follow each."""
        self._is_watching = False
        try:
            yield
        finally:
            self._is_watching = True

    def stop(self) -> None:
        del ClassicGroup.__setattr__
