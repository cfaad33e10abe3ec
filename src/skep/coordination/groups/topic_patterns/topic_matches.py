"""Matches the regular expressions of a group with the topics of the cluster, a little at a time.

The operation that finds expressions to match takes the first steps, which are mostly enough. ``topic_match_task`` takes
the others in operations of its own. Until they have ended the group keeps the topics that it has.
"""

from collections.abc import Mapping, Set

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


class TopicMatches:
    """The topics that match expressions. ``found`` has the expressions that are complete.

    An expression that was matched with the topics ``seen`` before is matched with the others only.
    """

    def __init__(self, topics: Topics, seen: Topics | None) -> None:
        self.topics = topics
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
        if known is None or self._seen is None:
            known = frozenset()
        else:
            names -= self._seen.keys()
        if INTERNAL_PREFIX not in regex:
            names = {name for name in names if not name.startswith(INTERNAL_PREFIX)}
        yield
        found = yield from topic_pattern(regex).match_all(names)
        return frozenset(found | (known & self.topics.keys()))
