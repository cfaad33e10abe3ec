"""Applies topic records of the metadata image to the partitions, a few at a time.

One change of the image may concern ten thousand partitions: another broker creates a topic, or a broker dies and this
one takes over. Small changes are applied in the step of the event loop in which the image changes, large ones in
slices. Until its turn comes a partition is as it was, as if the change had arrived that much later. A partition that is
opened by a request gets the role that the image has for it at that moment.

It is always the newest record that is applied, so the order of changes does not matter.
"""

import asyncio
from collections.abc import Awaitable, Callable

from skep.base.loop.slicer import Slicer, Work
from skep.base.loop.supervisor import Supervisor
from skep.metadata.model import PartitionRecord, TopicRecord

LOOKS_PER_STEP = 100
"""Unchanged partitions that are passed over in one step."""


class ImageApplier:
    """Owns the topics whose records are not applied yet.

    ``_waiting`` has for each the record that is applied; None if it is unknown or only partly applied. ``_current`` is
    the topic in progress, ``_task`` continues with it in later turns of the event loop.
    """

    def __init__(
        self,
        slicer: Slicer,
        supervisor: Supervisor,
        record_of: Callable[[str], TopicRecord | None],
        carry_out: Callable[[TopicRecord, int, PartitionRecord | None], bool],
    ) -> None:
        """``carry_out`` takes a topic, the index of a partition and its record as it was applied before.

        It returns whether there was anything to do.
        """
        self._slicer = slicer
        self._supervisor = supervisor
        self._record_of = record_of
        self._carry_out = carry_out
        self._waiting: dict[str, TopicRecord | None] = {}
        self._current: str | None = None
        self._task: asyncio.Task[None] | None = None

    def changed(self, name: str, before: TopicRecord | None) -> None:
        """The topic has a new record. ``before`` is the previous one, which is applied unless the topic is waiting."""
        self._waiting[name] = None if name in self._waiting or name == self._current else before

    def recheck(self, topic: TopicRecord) -> None:
        """Partitions of the topic may differ from its record, although the record has not changed."""
        self._waiting.setdefault(topic.name, topic)

    def run(self) -> "asyncio.Task[None] | None":
        """Applies what waits; begins at once if there is time in this turn of the event loop.

        Returns None when everything is applied, otherwise the task that ends when it is.
        """
        if self._task is None and self._waiting:
            rest = self._slicer.run(self._work())
            if rest is not None:
                self._task = self._supervisor.spawn("apply topic changes", self._finish(rest))
        return self._task

    async def _finish(self, rest: Awaitable[None]) -> None:
        try:
            await rest
        finally:
            self._task = None
        self.run()  # changes that arrived between the last slice and this step

    def _work(self) -> Work[None]:
        try:
            while self._waiting:
                self._current = next(iter(self._waiting))
                yield from self._topic(self._current, self._waiting.pop(self._current))
        finally:
            self._current = None

    def _topic(self, name: str, before: TopicRecord | None) -> Work[None]:
        topic = self._record_of(name)
        if topic is None:
            return
        known = before.partitions if before is not None and before.topic_id == topic.topic_id else ()
        for index in range(len(topic.partitions)):
            was_work = self._carry_out(topic, index, known[index] if index < len(known) else None)
            if was_work or index % LOOKS_PER_STEP == 0:
                yield
            if self._record_of(name) is not topic:
                return  # the topic has changed again, and waits again
