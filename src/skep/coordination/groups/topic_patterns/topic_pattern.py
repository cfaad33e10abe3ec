"""Matches topic names with a regular expression, in time proportional to their length.

The expression becomes an automaton whose states are sets of places in it. It follows all places that a name can reach
at the same time (Thompson's construction), so there is no backtracking. Each state is cached with its successor for
each character: after a few names a match is one lookup per character.

An expression may have more states than the cache holds. Then each character of a name costs as many steps as the state
has places, up to thousands, so matching can be interrupted, and it has a limit of steps.
"""

import functools
from collections.abc import Iterable
from typing import NamedTuple

from skep.base.errors import ErrorCode, KafkaError
from skep.base.loop.slicer import Work, run_at_once
from skep.coordination.groups.topic_patterns.regex_parser import Choice, Edge, Node, OneOf, Repeat, Sequence, parse

MAX_REMEMBERED = 2000
"""States in the cache, which is cleared when it is full."""
MAX_STEPS = 200_000
"""Places visited to match all names with an expression, some 40 ms. Usual expressions take a thousand or two."""
STEPS_AT_ONCE = 500
"""Places visited without a pause, some 0.1 ms. Those of one character are not interrupted: at most 1 ms."""
CHARACTERS_AT_ONCE = 2000
"""Characters of names followed through cached states without a pause."""


class _Place(NamedTuple):
    """Leads to ``followers`` by one of ``characters``; or without one, at an ``edge`` of the name or anywhere."""

    followers: tuple[int, ...]
    characters: frozenset[str] | None = None
    edge: Edge | None = None


class _State:
    """A set of places, and the successors that are cached so far."""

    __slots__ = ("following", "is_match", "places")

    def __init__(self, places: frozenset[int], *, is_match: bool) -> None:
        self.places = places
        self.is_match = is_match
        """Whether a name that ends here matches."""
        self.following: dict[str, _State] = {}


class TopicPattern:
    """A compiled expression, which matches whole names.

    ``is_too_costly``: matching took more than ``MAX_STEPS``.
    """

    def __init__(self, text: str) -> None:
        """Raises INVALID_REGULAR_EXPRESSION, with what is wrong with ``text``."""
        self.text = text
        self.is_too_costly = False
        self._steps = 0
        self._places: list[_Place] = [_Place(())]  # the first is where a match ends
        self._first_places = self._closure((self._compile(parse(text), 0),), is_start=True)
        self._states: dict[frozenset[int], _State] = {}
        self._start = self._state(self._first_places)

    def matches(self, name: str) -> bool:
        return run_at_once(self.match_all((name,))) == {name}

    def match_all(self, names: Iterable[str]) -> Work[set[str]]:
        """Returns the ``names`` that match. Raises INVALID_REGULAR_EXPRESSION if that takes too many steps."""
        began = paused_at = self._steps
        followed = 0
        found = set()
        for name in names:
            state = self._start
            for character in name:
                following = state.following.get(character)
                if following is None:
                    following = self._move(state, character)
                    if self._steps - began > MAX_STEPS:
                        self.is_too_costly = True
                        self.check()
                    while self._steps - paused_at > STEPS_AT_ONCE:
                        # Several pauses after an expensive character: their number tells the caller how long it took.
                        # The steps of others that match the same expression meanwhile count too.
                        paused_at += STEPS_AT_ONCE
                        yield
                state = following
                if not state.places:
                    break
            if state.is_match:
                found.add(name)
            followed += len(name)
            if followed > CHARACTERS_AT_ONCE:
                followed = 0
                yield
        return found

    def check(self) -> None:
        """Raises INVALID_REGULAR_EXPRESSION if matching took too many steps."""
        if self.is_too_costly:
            shown = self.text if len(self.text) <= 100 else self.text[:100] + "..."
            raise KafkaError(
                ErrorCode.invalid_regular_expression,
                f"SubscribedTopicRegex `{shown}` takes more than {MAX_STEPS} steps to match the topic names.",
            )

    def _state(self, places: frozenset[int]) -> _State:
        state = self._states.get(places)
        if state is None:
            if len(self._states) >= MAX_REMEMBERED:
                self._states.clear()
                # Not the old start: it would keep all its successors alive.
                self._start = self._states[self._first_places] = self._new_state(self._first_places)
            state = self._states[places] = self._new_state(places)
        return state

    def _new_state(self, places: frozenset[int]) -> _State:
        return _State(places, is_match=0 in self._closure(places, is_end=True))

    def _move(self, state: _State, character: str) -> _State:
        reached: list[int] = []
        for place in state.places:
            followers, characters, _ = self._places[place]
            if characters is not None and character in characters:
                reached.extend(followers)
        self._steps += len(state.places)
        following = state.following[character] = self._state(self._closure(reached))
        return following

    def _closure(self, places: Iterable[int], *, is_start: bool = False, is_end: bool = False) -> frozenset[int]:
        """Returns all places that can be reached without another character."""
        reached = set(places)
        to_do = list(reached)
        while to_do:
            followers, characters, edge = self._places[to_do.pop()]
            if characters is not None or (edge is not None and not (is_end if edge.is_end else is_start)):
                continue
            for follower in followers:
                if follower not in reached:
                    reached.add(follower)
                    to_do.append(follower)
        self._steps += len(reached)
        return frozenset(reached)

    def _compile(self, node: Node, follower: int) -> int:
        """Returns the place where ``node`` begins; where it ends, ``follower`` is next."""
        if isinstance(node, OneOf):
            return self._add(_Place((follower,), characters=node.characters))
        if isinstance(node, Edge):
            return self._add(_Place((follower,), edge=node))
        if isinstance(node, Choice):
            return self._add(_Place(tuple(self._compile(part, follower) for part in node.parts)))
        if isinstance(node, Sequence):
            for part in reversed(node.parts):
                follower = self._compile(part, follower)
            return follower
        return self._compile_repeat(node, follower)

    def _compile_repeat(self, node: Repeat, follower: int) -> int:
        begin = follower
        if node.most is None:
            begin = self._add(_Place(()))
            self._places[begin] = _Place((self._compile(node.part, begin), follower))
        else:
            for _ in range(node.most - node.least):
                begin = self._add(_Place((self._compile(node.part, begin), follower)))
        for _ in range(node.least):
            begin = self._compile(node.part, begin)
        return begin

    def _add(self, place: _Place) -> int:
        self._places.append(place)
        return len(self._places) - 1


@functools.lru_cache(maxsize=256)
def topic_pattern(text: str) -> TopicPattern:
    """Returns the pattern of ``text``, cached. Raises INVALID_REGULAR_EXPRESSION if it is not valid."""
    return TopicPattern(text)
