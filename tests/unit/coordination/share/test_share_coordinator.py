"""The front of the share coordinator: how long it waits, and what it deletes when."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from skep.base.config.broker_config import BrokerConfig
from skep.base.config.current_config import CurrentConfig
from skep.base.errors import ErrorCode, KafkaError, StorageError
from skep.coordination.share.share_coordinator import ShareCoordinator
from skep.coordination.share.share_state import ShareState
from tests.unit.coordination.share.scene import KEY


class Runtime:
    """Responds with what a test has put in; an exception is raised."""

    topic = "__share_group_state"

    def __init__(self, *responses: Any) -> None:
        self.responses = list(responses)

    def loaded_shards(self) -> Any:
        return iter([(index, None) for index in range(len(self.responses))])

    def submit_to(self, index: int, operation: Any) -> Any:
        if isinstance(self.responses[index], Exception):
            raise self.responses[index]
        return self.responses[index]

    def submit(self, key: str, operation: Any) -> Any:
        assert key == KEY.coordinator_key
        return self.responses[0]


def coordinator_over(runtime: Any, deleted: list[tuple[int, int]], **options: Any) -> ShareCoordinator:
    config = BrokerConfig()
    current = CurrentConfig(replace(config, coordinator=replace(config.coordinator, **options)))
    return ShareCoordinator(runtime, current, lambda index, before: deleted.append((index, before)))


def test_nothing_is_deleted_before_what_replaces_it_is_committed():
    async def scenario() -> None:
        committed = asyncio.get_running_loop().create_future()
        deleted: list[tuple[int, int]] = []
        pruning = asyncio.ensure_future(coordinator_over(Runtime(committed), deleted).prune())
        for _ in range(5):
            await asyncio.sleep(0)
        assert not deleted
        committed.set_result(17)
        await pruning
        assert deleted == [(0, 17)]

    asyncio.run(scenario())


def test_one_partition_that_cannot_be_pruned_does_not_stop_the_others():
    async def scenario() -> None:
        lost = asyncio.get_running_loop().create_future()
        lost.set_exception(KafkaError(ErrorCode.not_coordinator))
        deleted: list[tuple[int, int]] = []
        runtime = Runtime(lost, KafkaError(ErrorCode.not_coordinator), StorageError("no disk"), 9)
        await coordinator_over(runtime, deleted).prune()
        assert deleted == [(3, 9)]

    asyncio.run(scenario())


def test_a_write_that_the_replicas_do_not_get_is_given_up():
    async def scenario() -> None:
        never = asyncio.get_running_loop().create_future()
        share = coordinator_over(Runtime(never), [], share_write_timeout_ms=1)
        with pytest.raises(KafkaError, match=r"share\.coordinator\.write\.timeout\.ms") as refused:
            await share.write(KEY, ShareState(0, 0, 0))
        assert refused.value.code is ErrorCode.request_timed_out

    asyncio.run(scenario())


def test_an_empty_group_id_is_refused():
    async def scenario() -> None:
        with pytest.raises(KafkaError) as refused:
            await coordinator_over(Runtime(), []).initialize(KEY._replace(group_id=""), 0, 0)
        assert refused.value.code is ErrorCode.invalid_group_id

    asyncio.run(scenario())
