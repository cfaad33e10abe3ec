"""A broker of coordinators over real logs and without a network, which dies where its files stop."""

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Executor, Future
from typing import Any

from skep.base.config.topic_config import TopicConfig
from skep.base.ids import BrokerId
from skep.base.loop.slicer import Slicer
from skep.base.loop.supervisor import Supervisor
from skep.metadata.cluster_image import ClusterImage
from skep.metadata.model import PartitionRecord, TopicRecord, random_id
from skep.replication.replica_manager import ReplicaManager
from skep.storage.directory.log_directory import LogDirectory
from tests.manual_clock import ManualClock
from tests.memory_files import Crashed, MemoryFiles

HERE = BrokerId(1)
SYNC_TURNS = (12, 1, 5, 12)
"""That a sync takes, one after the other, in which others get on and sync sooner."""


def led_here(name: str, partitions: int) -> TopicRecord:
    return TopicRecord(name, random_id(), tuple(PartitionRecord.new([HERE]) for _ in range(partitions)))


class SlowExecutor(Executor):
    """Works on the event loop, some turns later: threads would make the order of the steps a matter of chance."""

    def __init__(self) -> None:
        self._turns = itertools.cycle(SYNC_TURNS)

    def submit(self, work: Callable[..., Any], /, *args: Any, **kwargs: Any) -> "Future[Any]":
        done: Future[Any] = Future()
        loop = asyncio.get_running_loop()

        def run(turns: int) -> None:
            if turns:
                loop.call_soon(run, turns - 1)
                return
            try:
                done.set_result(work(*args, **kwargs))
            except BaseException as error:
                done.set_exception(error)

        run(next(self._turns))
        return done


class Catalog:
    def __init__(self, topics: Sequence[TopicRecord]) -> None:
        self.image = ClusterImage.of("test", topics=topics)
        self.pending_deletions: dict[Any, str] = {}


class Life:
    """A broker from its start to its death. ``for_runtimes`` is what a CoordinatorRuntime gets after its decoder."""

    turns = 200
    """Of the event loop, within which everything has happened that is going to."""
    turn_ms = 0
    """How long each of them takes."""

    def __init__(self, files: MemoryFiles, config: TopicConfig, topics: Sequence[TopicRecord]) -> None:
        self.clock, self.supervisor, executor = ManualClock(), Supervisor(), SlowExecutor()
        directory = LogDirectory(files, "/data", self.clock)
        directory.open()
        self.catalog = Catalog(topics)
        self.replicas = ReplicaManager(directory, self.catalog, config, self.clock, executor, self.supervisor)  # type: ignore[arg-type]
        self.for_runtimes = (self.replicas, self.clock, executor, self.supervisor, Slicer(self.clock))
        self.is_dead = False
        asyncio.get_running_loop().set_exception_handler(self._died)

    def _died(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        assert isinstance(context.get("exception"), Crashed), context
        self.is_dead = True

    async def until(self, condition: Callable[[], bool]) -> None:
        for _ in range(self.turns):
            if condition():
                return
            if self.is_dead:
                raise Crashed("in the background")
            self.clock.advance_ms(self.turn_ms)
            await asyncio.sleep(0)
        raise AssertionError("it hangs")

    async def settled(self, done: Any) -> Any:
        """The response, unless the broker dies first."""
        if not isinstance(done, Awaitable):
            return done
        waiting = asyncio.ensure_future(done)
        await self.until(waiting.done)
        return waiting.result()
