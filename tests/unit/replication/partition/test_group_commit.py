"""Group commit: how many syncs serve how many waiters, and what a failed sync tells them."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from skep.base.errors import StorageError
from skep.base.ids import Offset
from skep.replication.partition.group_commit import GroupCommit


class Plan:
    def __init__(self, log):
        self._log = log
        self.end_offset = log.log_end_offset

    def run(self):
        self._log.syncs += 1
        assert self._log.gate.wait(60)
        if self._log.surprise is not None:
            raise self._log.surprise
        if self._log.fails:
            raise StorageError("the disk said no")


class SlowLog:
    """A log whose sync waits until the test lets it go on."""

    def __init__(self):
        self.log_end_offset = Offset(0)
        self.flushed_offset = Offset(0)
        self.is_config_waiting = False
        self.failure = None
        self.syncs = 0
        self.fails = False
        self.surprise = None
        self.gate = threading.Event()

    def flush_plan(self):
        return Plan(self) if self.log_end_offset > self.flushed_offset or self.failure else None

    def flushed(self, plan):
        self.flushed_offset, self.failure = plan.end_offset, None

    def flush_failed(self, plan, error):
        self.failure = str(error)


@pytest.fixture
def log():
    return SlowLog()


@pytest.fixture
def executor():
    with ThreadPoolExecutor(2) as executor:
        yield executor


def run(work):
    return asyncio.run(asyncio.wait_for(work, 30))


async def until(condition):
    while not condition():
        await asyncio.sleep(0.001)


def test_those_who_come_during_a_sync_share_the_next_one(log, executor):
    async def scenario():
        advanced = []
        commit = GroupCommit(log, executor, lambda: advanced.append(log.flushed_offset))
        log.log_end_offset = Offset(1)
        first = commit.flushed(Offset(1))
        await until(lambda: log.syncs == 1)
        later = []
        for end in range(2, 102):
            log.log_end_offset = Offset(end)
            later.append(commit.flushed(Offset(end)))
        assert not first.done()
        log.gate.set()
        await asyncio.gather(first, *later)
        assert log.syncs == 2
        assert advanced == [1, 101]
        await commit.idle()
        assert commit.is_idle

    run(scenario())


def test_what_is_on_the_disk_already_costs_no_sync(log, executor):
    async def scenario():
        log.log_end_offset = log.flushed_offset = Offset(5)
        await GroupCommit(log, executor, lambda: None).flushed(Offset(5))
        assert log.syncs == 0

    run(scenario())


def test_a_failed_sync_fails_all_who_waited_for_it_and_the_next_one_heals(log, executor):
    async def scenario():
        commit = GroupCommit(log, executor, lambda: None)
        log.gate.set()
        log.fails = True
        log.log_end_offset = Offset(2)
        waiting = [commit.flushed(Offset(1)), commit.flushed(Offset(2))]
        results = await asyncio.gather(*waiting, return_exceptions=True)
        assert [str(result) for result in results] == ["the disk said no"] * 2
        assert log.flushed_offset == 0
        log.fails = False
        await commit.flushed(Offset(2))
        assert log.flushed_offset == 2

    run(scenario())


def test_a_sync_that_fails_in_a_way_nobody_foresaw_leaves_nobody_waiting(log, executor):
    async def scenario():
        commit = GroupCommit(log, executor, lambda: None)
        log.gate.set()
        log.surprise = MemoryError("no room for a thought")
        log.log_end_offset = Offset(1)
        waiting = commit.flushed(Offset(1))
        with pytest.raises(StorageError, match="given up"):
            await waiting
        assert log.failure is not None
        assert commit.is_idle

    run(scenario())
