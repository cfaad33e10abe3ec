"""The process of the worker as the broker sees it: started when needed, again when it dies, gone with the broker.

The process here is a few lines of Python that follow the protocol of ``skep/worker/job.py``.
"""

import asyncio
import os
import signal

import pytest

from skep.base.clock import SystemClock
from skep.broker.worker import worker_process
from skep.broker.worker.worker_process import WorkerFailed, WorkerProcess

SCRIPT = """
import json, os, sys
settings = json.loads(sys.stdin.readline())
states = {}
for line in sys.stdin:
    message = json.loads(line)
    if message["job"] == "stop":
        break
    if message["job"] == "die":
        os._exit(3)
    if message["job"] == "silent":
        continue
    if "id" not in message:
        states[message["job"]] = message
        continue
    error = "no" if message["job"] == "refuse" else None
    print(json.dumps({"id": message["id"], "error": error, "states": states, "settings": settings}), flush=True)
"""


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch):
    monkeypatch.setattr(worker_process, "FIRST_PAUSE_S", 0.01)


def worker():
    return WorkerProcess(SystemClock(), lambda: {"directory": "d"}, ("-c", SCRIPT))


def run(scenario):
    async def all_of_it():
        process = worker()
        try:
            await scenario(process)
        finally:
            await process.stop()
            assert process.pid is None

    asyncio.run(all_of_it())


def is_alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_no_process_without_work():
    async def scenario(process):
        process.tell("held", None)
        await asyncio.sleep(0)
        assert process.pid is None

    run(scenario)


def test_a_request_starts_the_process_and_is_answered():
    async def scenario(process):
        reply = await process.ask("copy", {"what": "x"})
        assert reply["settings"] == {"directory": "d"}
        with pytest.raises(WorkerFailed, match="no"):
            await process.ask("refuse", {})

    run(scenario)


def test_the_last_state_is_told_again_to_the_next_process():
    async def scenario(process):
        process.tell("held", {"partitions": [1]})
        process.tell("held", {"partitions": [1, 2]})
        states = (await process.ask("copy", {}))["states"]
        assert states == {"held": {"job": "held", "partitions": [1, 2]}}
        first = process.pid
        os.kill(first, signal.SIGKILL)
        states = (await again(process, "copy"))["states"]
        assert states == {"held": {"job": "held", "partitions": [1, 2]}}
        assert process.pid not in (None, first)

    run(scenario)


async def again(process, job):
    """Until a process has answered: a request that was sent to a dying one fails."""
    while True:
        try:
            return await asyncio.wait_for(process.ask(job, {}), 30)
        except WorkerFailed:
            await asyncio.sleep(0.01)


def test_a_request_fails_when_its_process_dies_and_the_next_process_serves():
    async def scenario(process):
        asked = asyncio.create_task(process.ask("silent", {}))
        await asyncio.sleep(0)
        await process.ask("copy", {})
        with pytest.raises(WorkerFailed, match="has ended"):
            await process.ask("die", {})
        with pytest.raises(WorkerFailed, match="has ended"):
            await asked
        await again(process, "copy")

    run(scenario)


def test_stopping_ends_the_process_and_fails_what_waits():
    async def scenario(process):
        await process.ask("copy", {})
        pid = process.pid
        asked = asyncio.create_task(process.ask("silent", {}))
        await asyncio.sleep(0)
        await process.stop()
        with pytest.raises(WorkerFailed):
            await asked
        assert not is_alive(pid)

    run(scenario)


@pytest.mark.parametrize("turns", range(4))
def test_a_cancellation_that_comes_together_with_a_reply_counts(turns):
    """The loop is some turns further when the task is cancelled: the line is read, and the task has not gone on."""

    async def scenario(process):
        await process.ask("copy", {})
        running, keeper = process._process, process._keeper
        running.stdout.feed_data(b'{"id": 0, "error": null}\n')
        for _ in range(turns):
            await asyncio.sleep(0)
        keeper.cancel()
        running.kill()
        await running.wait()
        await asyncio.wait([keeper])
        assert keeper.cancelled()

    run(scenario)


def test_a_process_without_work_is_ended(monkeypatch):
    monkeypatch.setattr(worker_process, "IDLE_S", 0.05)

    async def scenario(process):
        process.tell("held", {})
        await process.ask("copy", {})
        pid = process.pid
        process.tell("held", None)
        while process.pid is not None:
            await asyncio.sleep(0.01)
        assert not is_alive(pid)
        await process.ask("copy", {})

    run(scenario)


def test_a_process_that_cannot_be_started_is_tried_again(monkeypatch):
    async def scenario(process):
        monkeypatch.setattr(worker_process.sys, "executable", "/does/not/exist")
        process.tell("held", {})
        await asyncio.sleep(0.05)
        assert process.pid is None
        monkeypatch.undo()
        await process.ask("copy", {})

    run(scenario)


def test_the_worker_of_skep_ends_with_its_standard_input(tmp_path):
    async def scenario():
        process = WorkerProcess(
            SystemClock(),
            lambda: {"bootstrap": "127.0.0.1:1", "directory": str(tmp_path), "node_id": 1},
        )
        with pytest.raises(WorkerFailed, match="no job 'brew'"):
            await process.ask("brew", {})
        pid = process.pid
        process._process.stdin.close()
        await process._process.wait()
        assert not is_alive(pid)
        await process.stop()

    asyncio.run(scenario())
