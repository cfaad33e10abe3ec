"""Whether topic names match an expression, in time proportional to their length.

The expression becomes a machine whose states are places in it. All places that a name may have led to are followed at
the same time (Thompson's construction), so nothing is tried twice. Each set of places that comes up is remembered with
what follows each character: after a few names a match is one look-up per character.
"""

import functools
from collections.abc import Iterable
from typing import NamedTuple

from skep.coordination.groups.topic_regex import Choice, Edge, Node, OneOf, Repeat, Sequence, parse

MAX_REMEMBERED = 2000
"""Sets of places, after which all are forgotten: a hostile expression has a number of them beyond any memory."""

_Places = frozenset[int]


class _Place(NamedTuple):
    """Goes on to ``followers`` with one of ``characters``, or without any at an edge of the name, or just so."""

    followers: tuple[int, ...]
    characters: frozenset[str] | None = None
    edge: Edge | None = None


class TopicPattern:
    """A compiled expression. ``matches`` is about the whole name."""

    def __init__(self, text: str) -> None:
        """INVALID_REGULAR_EXPRESSION says what is wrong with ``text``."""
        self._places: list[_Place] = [_Place(())]  # the first is where a match ends
        start = self._compile(parse(text), 0)
        self._start = self._closure((start,), is_start=True)
        self._moves: dict[_Places, dict[str, _Places]] = {}
        self._ends: dict[_Places, bool] = {}

    def matches(self, name: str) -> bool:
        places = self._start
        for character in name:
            known = self._moves.get(places)
            following = None if known is None else known.get(character)
            places = self._move(places, character) if following is None else following
            if not places:
                return False
        if places not in self._ends:
            self._ends[places] = 0 in self._closure(places, is_end=True)
        return self._ends[places]

    def _move(self, places: _Places, character: str) -> _Places:
        if len(self._moves) >= MAX_REMEMBERED:
            self._moves.clear()
            self._ends.clear()
        reached: list[int] = []
        for place in places:
            _, characters, _ = self._places[place]
            if characters is not None and character in characters:
                reached.extend(self._places[place].followers)
        following = self._closure(reached)
        self._moves.setdefault(places, {})[character] = following
        return following

    def _closure(self, places: Iterable[int], *, is_start: bool = False, is_end: bool = False) -> _Places:
        """All places that can be reached without a further character."""
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
        return frozenset(reached)

    def _compile(self, node: Node, follower: int) -> int:
        """The place where ``node`` begins, which goes on to ``follower``."""
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
    """The pattern of ``text``, which is used again and again; INVALID_REGULAR_EXPRESSION when it is none."""
    return TopicPattern(text)
