"""A share coordinator is stopped at every write, sync and deletion of its broker.

After the restart the state is that after all requests that were acknowledged, or with the one more that was in
progress. Snapshots and the deletion of old records, which happen in between, never show.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from skep.base.config.broker_config import BrokerConfig
from skep.base.config.current_config import CurrentConfig
from skep.base.config.topic_config import TopicConfig
from skep.base.errors import KafkaError, StorageError
from skep.base.ids import Offset
from skep.coordination.coordinator_runtime import CoordinatorRuntime
from skep.coordination.share import share_upkeep
from skep.coordination.share.share_coordinator import ShareCoordinator
from skep.coordination.share.share_records import decode_share_record
from skep.coordination.share.share_shard import ShareShard
from skep.coordination.share.share_state import DeliveryState, Reason, SharePartitionKey, ShareState, StateBatch
from tests.crash.life import HERE, Life, led_here
from tests.memory_files import Crashed, MemoryFiles, Survivors

STATE_TOPIC = "__share_group_state"
STATE, ORDERS = led_here(STATE_TOPIC, 1), led_here("orders", 2)
KEYS = [SharePartitionKey("kitchen", ORDERS.topic_id, index) for index in range(2)]
UPDATES_PER_SNAPSHOT = 2
INTERVAL_MS = 300_000
SMALL_SEGMENTS = TopicConfig(segment_bytes=400, file_delete_delay_ms=0, retention_ms=-1)

Visible = dict[SharePartitionKey, ShareState]


class ShareStateLife(Life):
    """With the share coordinator."""

    def __init__(self, files: MemoryFiles, config: TopicConfig) -> None:
        super().__init__(files, config, [STATE, ORDERS])
        options = replace(BrokerConfig().coordinator, share_snapshot_update_records_per_snapshot=UPDATES_PER_SNAPSHOT)
        current = CurrentConfig(replace(BrokerConfig(), coordinator=options))
        self.runtime: CoordinatorRuntime[ShareShard] = CoordinatorRuntime(
            STATE_TOPIC,
            lambda context: ShareShard(context, current, lambda: self.catalog.image),
            decode_share_record,
            *self.for_runtimes,
        )
        self.share = ShareCoordinator(self.runtime, current, self._delete_records)

    def _delete_records(self, index: int, before: int) -> None:
        self.replicas.delete_records_before(self.replicas.partition(STATE_TOPIC, index), Offset(before))

    async def start(self) -> None:
        await self.replicas.load()
        self.runtime.follow(STATE, HERE)
        await self.until(lambda: not self.runtime.is_loading)

    async def upkeep(self) -> None:
        """All that happens beside the requests: snapshots of cold partitions, and the deletion of old records."""
        self.clock.advance_ms(INTERVAL_MS + 1)
        await self.settled(self._scan_and_prune())
        await self.settled(self.replicas.write_checkpoints())

    async def _scan_and_prune(self) -> None:
        scanned = self.runtime.submit_to(0, share_upkeep.scan)
        # The snapshots are not committed yet when the deletion begins.
        await asyncio.gather(self.share.prune(), *([scanned] if isinstance(scanned, Awaitable) else []))

    def visible(self) -> Visible:
        if not self.runtime.indexes():
            return {}
        [(_, shard)] = self.runtime.loaded_shards()
        return {
            key: ShareState(
                state.state_epoch,
                state.leader_epoch,
                state.start_offset,
                state.delivery_complete_count,
                tuple(state.batches),
                state.generation,
            )
            for key, state in shard.states.items()
        }

    def log_start(self) -> int:
        return self.replicas.partition(STATE_TOPIC, 0).log.log_start_offset


def requests(share: ShareCoordinator) -> list[Callable[[], Awaitable[Any]]]:
    """In the order in which they are made."""
    first, second = KEYS

    def write(key: SharePartitionKey, offset: int, start: int, epoch: int = 0, count: int = 1) -> Any:
        batch = StateBatch(offset, offset + 1, DeliveryState.ACKNOWLEDGED, count)
        return lambda: share.write(key, ShareState(0, epoch, start, count, [batch]))

    def write_more(batch: StateBatch, start: int, *, generation: int = 0) -> Any:
        return lambda: share.write(first, ShareState(0, 3, start, 0, [batch], generation))

    return [
        lambda: share.initialize(first, 0, -1),
        lambda: share.initialize(second, 0, 7),
        write(second, 8, 7),
        *(write(first, 10 * number, 10 * number - 5) for number in range(1, 6)),
        lambda: share.read(first, 3),
        *(write(first, 10 * number, 10 * number - 5, epoch=3, count=2) for number in range(6, 9)),
        # A retry that waits, a dead letter that is missing and then written, and finished offsets opened again.
        write_more(StateBatch(90, 94, DeliveryState.AVAILABLE, 1, 1, 1_700_000_000_000), 86),
        write_more(StateBatch(92, 92, DeliveryState.ARCHIVING, 2, 2, 0, Reason.LIMIT), 90),
        write_more(StateBatch(92, 92, DeliveryState.ARCHIVED, 2), 90),
        write_more(StateBatch(85, 88, DeliveryState.AVAILABLE, 0), 85, generation=1),
        write_more(StateBatch(85, 86, DeliveryState.AVAILABLE, 1, 1, 1_700_000_000_000), 85, generation=1),
        lambda: share.delete(second),
        lambda: share.initialize(second, 0, 100),
        write(second, 101, -1),
    ]


async def workload(files: MemoryFiles, config: TopicConfig, history: list[Visible]) -> None:
    """Appends to ``history`` what is visible after each request that was acknowledged."""
    life = ShareStateLife(files, config)
    try:
        await life.start()
        history.append(life.visible())
        for number, request in enumerate(requests(life.share)):
            await life.settled(request())
            history.append(life.visible())
            if number % 4 == 3:
                await life.upkeep()
                assert life.visible() == history[-1], "the upkeep shows"
    finally:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)


async def found(files: MemoryFiles, config: TopicConfig) -> Visible:
    life = ShareStateLife(files, config)
    await life.start()
    return life.visible()


def dies(files: MemoryFiles, config: TopicConfig, history: list[Visible]) -> None:
    # A death in a thread that syncs is to those who wait for it a failed sync.
    with contextlib.suppress(Crashed, StorageError, KafkaError):
        asyncio.run(workload(files, config, history))


def test_the_workload_deletes_old_records_and_keeps_the_state():
    async def last_life() -> None:
        life = ShareStateLife(files, SMALL_SEGMENTS)
        await life.start()
        assert life.visible() == history[-1]
        assert life.log_start() > 10, "older records are deleted"

    files, history = MemoryFiles(), []
    asyncio.run(workload(files, SMALL_SEGMENTS, history))
    assert len(history) == 1 + len(requests(None))  # type: ignore[arg-type]
    files.crash(names=Survivors.ALL, content=Survivors.ALL)
    asyncio.run(last_life())


@pytest.mark.parametrize(
    ("config", "survivors"),
    [
        (SMALL_SEGMENTS, Survivors.ALL),
        (replace(SMALL_SEGMENTS, flush_messages=1), Survivors.ALL),
        (replace(SMALL_SEGMENTS, flush_messages=1), Survivors.TORN),
        (replace(SMALL_SEGMENTS, flush_messages=1), Survivors.SYNCED),
    ],
    ids=["killed", "killed-synced", "torn-synced", "power-cut-synced"],
)
def test_stopped_at_every_write_and_sync(config: TopicConfig, survivors: Survivors):
    whole, expected = MemoryFiles(), []
    asyncio.run(workload(whole, config, expected))
    assert whole.steps > 50
    for step in range(1, whole.steps + 2):
        files, history = MemoryFiles(), []
        files.stop_at(step)
        dies(files, config, history)
        assert history == expected[: len(history)]
        files.crash(names=survivors, content=survivors)
        acknowledged = max(0, len(history) - 1)
        state = asyncio.run(found(files, config))
        assert state in expected[acknowledged : acknowledged + 2], f"stopped at step {step} of {whole.steps}"
