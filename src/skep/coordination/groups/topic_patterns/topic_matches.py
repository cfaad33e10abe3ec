"""Matches the regular expressions of a group with the topics of the cluster, a little at a time.

The operation that finds expressions to match takes the first steps, which are mostly enough. ``topic_match_task`` takes
the others in operations of its own. Until they have ended the group keeps the topics that it has.
"""

from collections.abc import Callable, Mapping, Set
from typing import NamedTuple

from skep.base.errors import KafkaError
from skep.base.loop.slicer import Work
from skep.coordination.groups.topic_patterns.topic_pattern import topic_pattern
from skep.metadata.model import TopicRecord

Topics = Mapping[str, TopicRecord]

INTERNAL_PREFIX = "__"
"""An expression matches internal topics only if it contains this prefix.

Otherwise a consumer of ``.*`` would consume ``__consumer_offsets``, to which its own commits are written.
"""
STEPS_AT_ONCE = 20
"""Steps in one operation: some 2 ms, enough for a thousand topics.

With an expression that is meant to be slow it is up to 10 ms.
"""


NAMES_A_STEP = 20
"""Names that are filtered in one step."""


class TopicFilter(NamedTuple):
    """The topics that a member may know of. They may be others when ``version`` is another."""

    version: int
    allows: Callable[[str], bool]


class TopicMatches:
    """The topics that match expressions. ``found`` has the expressions that are complete.

    An expression that was matched with the topics ``seen`` before is matched with the others only. With a filter it is
    matched with all of them, because those of before may have been hidden then.
    """

    def __init__(self, topics: Topics, seen: Topics | None, topic_filter: TopicFilter | None = None) -> None:
        self.topics = topics
        self._filter = topic_filter
        self.found: dict[str, frozenset[str]] = {}
        self._seen = seen
        self._left: dict[str, frozenset[str] | None] = {}
        self._work: Work[None] | None = None

    @property
    def is_done(self) -> bool:
        return not self._left

    def add(self, regex: str, known: frozenset[str] | None) -> None:
        """``known`` are the matches among the topics seen before; None if the expression was never matched."""
        if regex not in self.found:
            self._left.setdefault(regex, known)

    def go_on(self) -> None:
        if self._work is None:
            self._work = self._matched()
        for _ in range(STEPS_AT_ONCE):
            if next(self._work, self) is self:
                self._work = None
                return

    def _matched(self) -> Work[None]:
        while self._left:
            regex, known = next(iter(self._left.items()))
            try:
                self.found[regex] = yield from self._matching(regex, known)
            except KafkaError:
                # Too expensive. The next heartbeat of its members is refused.
                self.found[regex] = frozenset()
            del self._left[regex]

    def _matching(self, regex: str, known: frozenset[str] | None) -> Work[frozenset[str]]:
        names: Set[str] = self.topics.keys()
        if known is None or self._seen is None or self._filter is not None:
            known = frozenset()
        else:
            names -= self._seen.keys()
        if INTERNAL_PREFIX not in regex:
            names = {name for name in names if not name.startswith(INTERNAL_PREFIX)}
        yield
        found: Set[str] = yield from topic_pattern(regex).match_all(names)
        if self._filter is not None:
            found = yield from self._visible(found, self._filter)
        return frozenset(found | (known & self.topics.keys()))

    def _visible(self, names: Set[str], topic_filter: TopicFilter) -> Work[Set[str]]:
        visible = set()
        for number, name in enumerate(names):
            if topic_filter.allows(name):
                visible.add(name)
            if not number % NAMES_A_STEP:
                yield
        return visible
