"""ListOffsets (API 2), versions 1 to 11.

Behaviour
    ======================  ==============================================================================
    timestamp               answer
    ======================  ==============================================================================
    -1 latest               the high watermark; with read_committed the last stable offset
    -2 earliest             the log start offset
    -3 max timestamp (7+)   the record with the greatest timestamp, or -1 when there is none
    -4 earliest local (8+)  the log start offset: nothing is tiered
    -5 last tiered (9+)     -1: nothing is tiered
    -6 next upload (11+)    -1: nothing is tiered
    a time                  the first record at or after it, or -1
    ======================  ==============================================================================

    A time is looked up exactly, which may mean opening one batch, or looking at every header of the log; that is done
    in a thread, and given up when the client leaves or the broker stops.

Refusals, per partition, in order
    the same partition twice; a special timestamp newer than the version; unknown topic or partition; another broker
    leads; leader epoch; for what depends on the end of the log: another broker may lead by now
    (replication/partition/leadership_lease.py), OFFSET_NOT_AVAILABLE while a new leader does not know yet
    how far its predecessor had committed (KIP-207).

Left out
    ``replica_id`` and ``timeout`` are read and ignored: followers do not ask here, and there is no remote storage.
"""

from typing import Any, NamedTuple

from skep.base.errors import ErrorCode, KafkaError, StorageError
from skep.base.ids import Offset
from skep.base.loop.slicer import Work
from skep.broker.named_items import NAMES_AT_ONCE
from skep.broker.refusals import code_of
from skep.broker.request import Request
from skep.broker.services import Services
from skep.replication.partition.partition import Partition
from skep.replication.partition.time_lookups import MAX_TIMESTAMP
from skep.wire.codec import Body
from skep.wire.lazy_array import LazyArray

LATEST, EARLIEST, EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING_UPLOAD = -1, -2, -4, -5, -6
_FIRST_VERSION = {MAX_TIMESTAMP: 7, EARLIEST_LOCAL: 8, LATEST_TIERED: 9, EARLIEST_PENDING_UPLOAD: 11}
_OLDEST_SPECIAL = EARLIEST_PENDING_UPLOAD
READ_COMMITTED = 1
_UNKNOWN = {"timestamp": -1, "offset": -1}


class _Search(NamedTuple):
    """A time that has to be looked for in a log; the answer goes into ``found``."""

    partition: Partition
    timestamp: int
    up_to: Offset
    found: dict[str, Any]


async def handle(services: Services, request: Request) -> Body:
    topics, searches = await services.slicer.finish(_looked_up(services, request))
    for search in searches:
        search.found.update(await _search(services, search))
    return {"topics": topics}


def _named_twice(request: Request) -> Work[set[tuple[str, int]]]:
    seen: set[tuple[str, int]] = set()
    twice: set[tuple[str, int]] = set()
    for topic in request.body.topics:
        for number, wanted in enumerate(topic.partitions):
            partition = (topic.name, wanted.partition_index)
            (twice if partition in seen else seen).add(partition)
            if not number % NAMES_AT_ONCE:
                yield
    return twice


def _looked_up(services: Services, request: Request) -> Work[tuple[list[dict[str, Any]], list[_Search]]]:
    """What is known at once, and the searches for the rest."""
    twice = yield from _named_twice(request)
    topics, searches = [], []
    for topic in request.body.topics:
        partitions = []
        for wanted in topic.partitions:
            row = {"partition_index": wanted.partition_index}
            try:
                if (topic.name, wanted.partition_index) in twice:
                    raise KafkaError(ErrorCode.invalid_request, "the partition is named twice")
                found = _look_up(services, request, topic.name, wanted, row)
                if isinstance(found, _Search):
                    searches.append(found)
                else:
                    row.update(found)
            except (KafkaError, StorageError) as error:
                row.update(_UNKNOWN, error_code=code_of(error))
            partitions.append(row)
            yield
        topics.append({"name": topic.name, "partitions": partitions})
    return topics, searches


def _look_up(
    services: Services, request: Request, topic: str, wanted: Any, row: dict[str, Any]
) -> dict[str, Any] | _Search:
    timestamp = wanted.timestamp
    if timestamp < _OLDEST_SPECIAL or request.version < _FIRST_VERSION.get(timestamp, 0):
        raise KafkaError(ErrorCode.unsupported_version, f"timestamp {timestamp} in version {request.version}")
    partition = services.replicas.partition(topic, wanted.partition_index)
    partition.check_leader_epoch(getattr(wanted, "current_leader_epoch", -1))
    read_committed = getattr(request.body, "isolation_level", 0) == READ_COMMITTED
    up_to = partition.last_stable_offset if read_committed else partition.high_watermark
    if timestamp not in (EARLIEST, EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING_UPLOAD):
        partition.check_leads()
        partition.check_knows_committed()
    if timestamp == LATEST:
        return _at(partition, up_to)
    if timestamp in (EARLIEST, EARLIEST_LOCAL):
        return _at(partition, partition.log.log_start_offset)
    if timestamp in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD):
        return _UNKNOWN
    return _Search(partition, timestamp, up_to, row)


async def _search(services: Services, search: _Search) -> dict[str, Any]:
    partition, timestamp, up_to, _ = search
    try:
        found = await services.time_lookups.find(partition.log, timestamp, up_to)
    except StorageError as error:
        return {**_UNKNOWN, "error_code": code_of(error)}
    if found is None:
        return _UNKNOWN
    return {"timestamp": found.timestamp, "offset": found.offset, "leader_epoch": partition.leader_epoch}


def _at(partition: Partition, offset: int) -> dict[str, Any]:
    return {"timestamp": -1, "offset": offset, "leader_epoch": partition.leader_epoch}


def refuse(request: Request, code: ErrorCode) -> Body:
    def partition(wanted: Any) -> dict[str, Any]:
        return {"partition_index": wanted.partition_index, "error_code": code, **_UNKNOWN}

    def topic(named: Any) -> dict[str, Any]:
        return {"name": named.name, "partitions": LazyArray(named.partitions, partition)}

    return {"topics": LazyArray(request.body.topics, topic)}
