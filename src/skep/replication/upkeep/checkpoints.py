"""Writes the checkpoint files of the data directory while the broker serves."""

import asyncio
from collections.abc import Callable, Iterable
from concurrent.futures import Executor

from skep.base.ids import Offset, TopicPartition
from skep.base.loop.slicer import Slicer
from skep.storage.directory.log_directory import LogDirectory


class Checkpoints:
    """Writes one checkpoint at a time: collects it in slices and writes it in a thread. Callers that arrive meanwhile
    share the next one.

    ``_begun`` counts the checkpoints; ``_written`` is the number of the last one that is on the disk.
    """

    def __init__(
        self,
        directory: LogDirectory,
        executor: Executor,
        slicer: Slicer,
        high_watermarks: Callable[[], Iterable[tuple[TopicPartition, Offset]]],
    ) -> None:
        self._directory = directory
        self._executor = executor
        self._slicer = slicer
        self._high_watermarks = high_watermarks
        self._turn = asyncio.Lock()
        self._begun = 0
        self._written = 0

    async def write(self) -> None:
        """Returns when recovery points, log start offsets and high watermarks as they are now, or newer, are
        durable."""
        asked = self._begun
        async with self._turn:
            if self._written > asked:
                return
            self._begun += 1
            number = self._begun
            work = await self._slicer.finish(self._directory.checkpoint_in_slices(self._high_watermarks()))
            await asyncio.get_running_loop().run_in_executor(self._executor, work)
            self._written = number
