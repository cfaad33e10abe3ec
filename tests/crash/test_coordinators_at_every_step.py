"""Transactions over two partitions and a group's offset are stopped at every write and sync of the whole broker.

After the restart the coordinators go on by themselves, and a new producer takes over. Then every transaction is there
in all its places or in none, and those that the producer was told are committed are.
"""

import asyncio
import contextlib

import pytest

from skep.base.config.topic_config import TopicConfig
from skep.base.errors import KafkaError, StorageError
from tests.crash.transaction_life import PLACES, TransactionLife
from tests.memory_files import Crashed, MemoryFiles, Survivors


async def workload(files: MemoryFiles, config: TopicConfig, promised: list[int]) -> None:
    life = TransactionLife(files, config)
    try:
        await life.start()
        producer = await life.new_producer()
        for number in range(4):
            commit = number != 2
            await life.transaction(producer, number, commit=commit)
            if commit:
                promised.append(number)
            await life.complete()
    finally:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)


async def check(files: MemoryFiles, config: TopicConfig, promised: list[int]) -> None:
    life = TransactionLife(files, config)
    await life.start()
    await life.new_producer()
    seen = [life.committed_in(place) for place in PLACES]
    assert seen[0] == seen[1], "committed in one partition and not in the other"
    assert set(promised) <= set(seen[0]) <= {0, 1, 3}
    assert life.committed_offset() == (seen[0][-1] if seen[0] else None), "the offset is not that of the records"


def dies(files: MemoryFiles, config: TopicConfig, promised: list[int]) -> None:
    # A death in a thread that syncs is to those who wait for it a failed sync.
    with contextlib.suppress(Crashed, StorageError, KafkaError):
        asyncio.run(workload(files, config, promised))


def test_the_workload_itself_keeps_its_promises():
    files, promised = MemoryFiles(), []
    asyncio.run(workload(files, TopicConfig(), promised))
    assert promised == [0, 1, 3]
    files.crash(names=Survivors.ALL, content=Survivors.ALL)
    asyncio.run(check(files, TopicConfig(), promised))


@pytest.mark.parametrize(
    ("config", "survivors"),
    [
        (TopicConfig(), Survivors.ALL),
        (TopicConfig(flush_messages=1), Survivors.ALL),
        (TopicConfig(flush_messages=1), Survivors.TORN),
        (TopicConfig(flush_messages=1), Survivors.SYNCED),
    ],
    ids=["killed", "killed-synced", "torn-synced", "power-cut-synced"],
)
def test_stopped_at_every_write_and_sync(config: TopicConfig, survivors: Survivors):
    whole = MemoryFiles()
    asyncio.run(workload(whole, config, []))
    assert whole.steps > 50
    for step in range(1, whole.steps + 2):
        files, promised = MemoryFiles(), []
        files.stop_at(step)
        dies(files, config, promised)
        files.crash(names=survivors, content=survivors)
        try:
            asyncio.run(check(files, config, promised))
        except AssertionError as error:
            raise AssertionError(f"stopped at step {step} of {whole.steps}, promised {promised}") from error
