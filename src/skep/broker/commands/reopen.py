"""The command ``reopen``: lets a share group have records again that it has finished, as if never delivered (redrive).

Arguments
    ``group``, ``topic``, ``partition``, ``topic_id``; ``ranges`` of offsets; ``generation``, that of ``deliveries``:
    the records are opened only if the state still has it. So a request that is sent twice has its effect once.

Result
    ``reopened``: how many records were opened. The others are not finished, were never delivered, or are deleted.
    ``generation``: the new one.

Refusals
    FENCED_STATE_EPOCH: the state has another generation.
    INCONSISTENT_TOPIC_ID: the topic was deleted and created again.
    COORDINATOR_LOAD_IN_PROGRESS: the state is being read, or it is not known yet which dead letters were written.
    UNKNOWN_SERVER_ERROR: the write has failed, or its outcome is not known. Ask for the generation.
    INVALID_REQUEST: dead letters of the group cannot be written; with the reason.
"""

import asyncio
from collections.abc import Mapping
from typing import Any

from skep.base.errors import ErrorCode, KafkaError
from skep.broker.commands.command import Command, offset_ranges, text
from skep.broker.commands.share_place import PLACE, place_of
from skep.broker.services import Services
from skep.broker.share.share_partition import SharePartition

_LOAD_S = 5.0


async def _reopen(services: Services, arguments: Mapping[str, Any]) -> dict[str, Any]:
    key, _ = place_of(services, arguments)
    share = services.share_partitions.find(*key)
    try:
        await _loaded(share)
        ranges = [(first, last) for first, last in arguments["ranges"]]
        queue = services.share_partitions.dead_letters
        if queue is None:
            return await _reopen_if(share, arguments["generation"], ranges)
        # A note of which letters are committed is of one generation: see worker/dead_letter_copier.py.
        async with queue.held(share) as is_known:
            if not is_known:
                raise _unknown(queue.problem(share))
            return await _reopen_if(share, arguments["generation"], ranges)
    finally:
        services.share_sessions.drop_unused(key.group_id)


async def _loaded(share: SharePartition) -> None:
    if share.loading is not None:
        await asyncio.wait([share.loading], timeout=_LOAD_S)
    if share.error is not None:
        raise share.error


async def _reopen_if(share: SharePartition, generation: str | None, ranges: list[tuple[int, int]]) -> dict[str, Any]:
    if generation is not None and share.generation != generation:
        raise KafkaError(
            ErrorCode.fenced_state_epoch, f"the state has the generation {share.generation}, not {generation}"
        )
    try:
        reopened = await share.reopen(ranges)
    except KafkaError as error:
        if error.code is ErrorCode.invalid_request:
            raise
        # Not the code of the write: clients repeat requests after some codes, and must not think that nothing was done.
        raise KafkaError(
            ErrorCode.unknown_server_error, f"it is not known whether the records were opened: {error}"
        ) from None
    return {"reopened": reopened, "generation": share.generation}


def _unknown(problem: str | None) -> KafkaError:
    if problem is None:
        return KafkaError(ErrorCode.coordinator_load_in_progress, "dead letters are being written; try again")
    return KafkaError(ErrorCode.invalid_request, f"nothing can be reopened while dead letters are missing: {problem}")


COMMAND = Command(_reopen, {**PLACE, "ranges": offset_ranges(), "generation": text(most=50, default=None)})
