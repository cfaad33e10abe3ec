"""Supervised tasks: a job that is repeated survives its own failures."""

import asyncio

from skep.base.errors import StorageError
from skep.base.loop.supervisor import Supervisor


def test_a_repeated_job_goes_on_after_every_kind_of_failure(caplog):
    async def scenario():
        supervisor = Supervisor()
        enough = asyncio.Event()
        failures = [StorageError("the disk said no"), ValueError("a bug")]

        async def job():
            if failures:
                raise failures.pop(0)
            enough.set()

        supervisor.repeat(lambda: 1, job)
        await asyncio.wait_for(enough.wait(), 30)
        await supervisor.close()

    asyncio.run(scenario())
    messages = [record.getMessage() for record in caplog.records]
    assert messages == ["job: the disk said no", "job failed; it will run again"]
    assert caplog.records[0].exc_info is None
    assert caplog.records[1].exc_info is not None


def test_an_interval_that_is_made_shorter_counts_from_the_same_moment():
    async def scenario():
        supervisor = Supervisor()
        ran = asyncio.Event()
        interval_ms = [3_600_000]

        async def job():
            ran.set()

        supervisor.repeat(lambda: interval_ms[0], job)
        await asyncio.sleep(0)
        interval_ms[0] = 1
        await asyncio.wait_for(ran.wait(), 30)
        await supervisor.close()

    asyncio.run(scenario())
