"""The front of the share coordinator: finds the shard of each share partition and runs the request there."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from skep.base.config.current_config import CurrentConfig
from skep.base.errors import ErrorCode, KafkaError, StorageError
from skep.coordination.coordinator_runtime import CoordinatorRuntime
from skep.coordination.group_ids import check_group_id
from skep.coordination.shard import Outcome
from skep.coordination.share import share_operations, share_upkeep
from skep.coordination.share.share_shard import ShareShard
from skep.coordination.share.share_state import SharePartitionKey, ShareState

logger = logging.getLogger(__name__)


class ShareCoordinator:
    """Holds no state of its own apart from the shards.

    The requests are those of ``SharePersister``, for the share partitions that this broker coordinates. For others they
    raise NOT_COORDINATOR. All changes of one request are in the log when it first awaits.
    """

    def __init__(
        self,
        runtime: CoordinatorRuntime[ShareShard],
        config: CurrentConfig,
        delete_records: Callable[[int, int], None],
    ) -> None:
        """``delete_records`` deletes the records of a partition of ``__share_group_state`` before an offset."""
        self._runtime = runtime
        self._config = config
        self._delete_records = delete_records

    async def initialize(self, key: SharePartitionKey, state_epoch: int, start_offset: int) -> None:
        await self._submit(key, lambda shard: share_operations.initialize(shard, key, state_epoch, start_offset))

    async def read(self, key: SharePartitionKey, leader_epoch: int) -> ShareState:
        state: ShareState = await self._submit(key, lambda shard: share_operations.read(shard, key, leader_epoch))
        return state

    async def write(self, key: SharePartitionKey, state: ShareState) -> None:
        await self._submit(key, lambda shard: share_operations.write(shard, key, state))

    def commits_at_once(self, key: SharePartitionKey) -> bool:
        """Whether ``write_now`` can write. A cheap check: False may mean not yet."""
        return self._runtime.commits_at_once(key.coordinator_key)

    def write_now(self, key: SharePartitionKey, state: ShareState) -> None:
        """As ``write``, if ``commits_at_once``."""
        check_group_id(self._config.value.coordinator, key.group_id)
        self._runtime.submit(key.coordinator_key, lambda shard: share_operations.write(shard, key, state))

    async def summary(self, key: SharePartitionKey) -> ShareState:
        state: ShareState = await self._submit(key, lambda shard: share_operations.summary(shard, key))
        return state

    async def delete(self, key: SharePartitionKey) -> None:
        await self._submit(key, lambda shard: share_operations.delete(shard, key))

    async def _submit(self, key: SharePartitionKey, operation: Callable[[ShareShard], Outcome]) -> Any:
        check_group_id(self._config.value.coordinator, key.group_id)
        response = self._runtime.submit(key.coordinator_key, operation)
        return await self._committed(response) if isinstance(response, Awaitable) else response

    async def _committed(self, response: Awaitable[Any]) -> Any:
        timeout_ms = self._config.value.coordinator.share_write_timeout_ms
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                return await response
        except TimeoutError:
            raise KafkaError(
                ErrorCode.request_timed_out,
                f"not all in-sync replicas have the state after {timeout_ms} ms (share.coordinator.write.timeout.ms)",
            ) from None

    async def prune(self) -> None:
        """Deletes the records that are no longer needed. What fails is tried again next time."""
        for index, _ in self._runtime.loaded_shards():
            try:
                needed_from = self._runtime.submit_to(index, share_upkeep.needed_from)
                if isinstance(needed_from, Awaitable):
                    needed_from = await self._committed(needed_from)
                self._delete_records(index, needed_from)
            except (KafkaError, StorageError) as error:
                logger.info("%s-%d is not pruned now: %s", self._runtime.topic, index, error)
