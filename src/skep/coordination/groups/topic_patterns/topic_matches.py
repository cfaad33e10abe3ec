"""Bringing the topics of a group's expressions up to date with the cluster's, a little at a time.

The first steps are taken by the operation that finds expressions to match: mostly that is all it takes. The rest is
left to operations of its own, one after the other. Until they have ended the group goes on with the topics that it
knows.
"""

from collections.abc import Mapping, Set

from skep.base.errors import KafkaError
from skep.base.loop.slicer import Work
from skep.coordination.groups.topic_patterns.topic_pattern import topic_pattern
from skep.metadata.model import TopicRecord

Topics = Mapping[str, TopicRecord]

INTERNAL_PREFIX = "__"
"""An expression finds topics of this kind only if it has these characters itself.

Consuming ``.*`` would otherwise mean to consume ``__consumer_offsets``, to which the consumer's own commits go.
"""
STEPS_AT_ONCE = 20
"""Pauses of the work that are passed over in one operation: some 2 ms, enough for a thousand topics.

With an expression that is made to be slow it is up to 10 ms.
"""


class TopicMatches:
    """The names among ``topics`` that match expressions. ``found`` has those expressions that are done with.

    An expression whose topics among ``seen`` are known is matched against the others alone.
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
        """``known`` is what matches among the topics that were seen before; None: it was never matched."""
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
                # Too costly. Its members are told so by their next heartbeat.
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
