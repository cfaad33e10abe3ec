"""Carrying out what the metadata says of topics, a few partitions at a time.

One change of the image may concern ten thousand partitions: a topic is made on another broker, a broker dies and this
one takes over. Small changes are carried out in the step of the event loop in which the image changed, large ones in
slices. Until its turn comes a partition is as it was, as if the news had come that much later. A partition that is
opened by somebody who asks for it gets the role that the image has for it by then.

What is carried out is always the newest record, so no order of changes has to be kept.
"""

import asyncio
from collections.abc import Awaitable, Callable

from skep.base.loop.slicer import Slicer, Work
from skep.base.loop.supervisor import Supervisor
from skep.metadata.model import PartitionRecord, TopicRecord

LOOKS_PER_STEP = 100
"""Partitions that have not changed are passed over so many at a time."""


class ImageChanges:
    """Owns the topics whose records are not carried out yet.

    ``_waiting`` has for each the record that is carried out; None: not known, or not all of it. ``_current`` is the one
    that is under way, and ``_task`` what goes on with it in later turns.
    """

    def __init__(
        self,
        slicer: Slicer,
        supervisor: Supervisor,
        record_of: Callable[[str], TopicRecord | None],
        carry_out: Callable[[TopicRecord, int, PartitionRecord | None], bool],
    ) -> None:
        """``carry_out`` is given a topic, the number of a partition and its record as it was carried out before.

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
        """The topic has another record than ``before``, which was carried out if it was not waiting."""
        self._waiting[name] = None if name in self._waiting or name == self._current else before

    def look_again(self, topic: TopicRecord) -> None:
        """Partitions of the topic may not be as its record says, although that is not new."""
        self._waiting.setdefault(topic.name, topic)

    def run(self) -> "asyncio.Task[None] | None":
        """Carries out what waits, the first of it at once if there is time in this turn.

        None: all is carried out. Otherwise the task that ends when it is.
        """
        if self._task is None and self._waiting:
            rest = self._slicer.run(self._work())
            if rest is not None:
                self._task = self._supervisor.spawn("carry out changes of topics", self._finish(rest))
        return self._task

    async def _finish(self, rest: Awaitable[None]) -> None:
        try:
            await rest
        finally:
            self._task = None
        self.run()  # what came between the last slice and this step

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
                return  # whoever changed it has it waiting
