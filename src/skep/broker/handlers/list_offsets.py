"""ListOffsets (API 2), versions 1 to 11.

Behaviour
    ======================  ==============================================================================
    timestamp               offset in the response
    ======================  ==============================================================================
    -1 latest               the high watermark; with read_committed the last stable offset
    -2 earliest             the log start offset
    -3 max timestamp (7+)   the record with the greatest timestamp, or -1 when there is none
    -4 earliest local (8+)  the log start offset: nothing is tiered
    -5 last tiered (9+)     -1: nothing is tiered
    -6 next upload (11+)    -1: nothing is tiered
    a time                  the first record at or after it, or -1
    ======================  ==============================================================================

    A time is looked up exactly, which may need one batch to be opened, or every batch header of the log to be read. A
    thread does that. It stops when the client leaves or the broker stops.

Versions
    1 is the first with one offset per partition, and with its timestamp (KIP-79).
    2: isolation level (KIP-98), and ``throttle_time_ms``.
    3 changes nothing here (quotas).
    4: leader epochs, in the request and in the response (KIP-320).
    5: OFFSET_NOT_AVAILABLE (KIP-207), which older versions get here too; in Kafka these get LEADER_NOT_AVAILABLE.
    6 is flexible.
    7: the timestamp -3 (KIP-734).
    8: the timestamp -4 (KIP-405).
    9: the timestamp -5 (KIP-1005).
    10: ``timeout_ms``, for offsets in remote storage (KIP-1075).
    11: the timestamp -6 (KIP-1023).

Refusals, per partition, in order
    Not authorized; the same partition twice; a special timestamp newer than the version; unknown topic or partition;
    another broker leads; leader epoch. If the result depends on the end of the log: another broker may lead by now
    (``leadership_lease.py``); OFFSET_NOT_AVAILABLE while a new leader does not know yet how far its predecessor had
    committed (KIP-207).

Left out
    ``replica_id`` and ``timeout`` are ignored: followers do not send this request, and there is no remote storage.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from skep.base.errors import ErrorCode, KafkaError, StorageError
from skep.base.ids import Offset
from skep.base.loop.slicer import Work
from skep.broker.named_items import NAMES_AT_ONCE
from skep.broker.permissions import TOPIC, allowed
from skep.broker.refusals import code_of
from skep.broker.request import Request
from skep.broker.services import Services
from skep.replication.partition.partition import Partition
from skep.replication.partition.time_lookups import MAX_TIMESTAMP
from skep.security.access import refusal
from skep.wire.codec import Body
from skep.wire.lazy_array import LazyArray

if TYPE_CHECKING:
    from skep.wire.entities.request_types import ListOffsetsRequest

LATEST, EARLIEST, EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING_UPLOAD = -1, -2, -4, -5, -6
_FIRST_VERSION = {MAX_TIMESTAMP: 7, EARLIEST_LOCAL: 8, LATEST_TIERED: 9, EARLIEST_PENDING_UPLOAD: 11}
_OLDEST_SPECIAL = EARLIEST_PENDING_UPLOAD
READ_COMMITTED = 1
_UNKNOWN = {"timestamp": -1, "offset": -1}

_Found = Mapping[str, Any]
"""Offset, timestamp and leader epoch, or an error code, as the response has them."""


class _Search(NamedTuple):
    """A timestamp that has to be searched for in a log."""

    partition: Partition
    timestamp: int
    up_to: Offset


async def handle(services: Services, request: "Request[ListOffsetsRequest]") -> Body:
    found = await services.slicer.finish(_look_up_all(services, request))
    searched = [await _search(services, one) for one in found if isinstance(one, _Search)]
    return {"topics": await services.slicer.finish(_response(request, found, iter(searched)))}


def _named_twice(request: "Request[ListOffsetsRequest]") -> Work[set[tuple[str, int]]]:
    seen: set[tuple[str, int]] = set()
    twice: set[tuple[str, int]] = set()
    for topic in request.body.topics:
        for number, wanted in enumerate(topic.partitions):
            partition = (topic.name, wanted.partition_index)
            (twice if partition in seen else seen).add(partition)
            if not number % NAMES_AT_ONCE:
                yield
    return twice


def _look_up_all(services: Services, request: "Request[ListOffsetsRequest]") -> Work[list[_Found | _Search]]:
    """Returns for each partition of the request its offset, or the search that finds it."""
    twice = yield from _named_twice(request)
    found: list[_Found | _Search] = []
    for topic in request.body.topics:
        is_allowed = allowed(request, TOPIC, topic.name)
        for wanted in topic.partitions:
            try:
                if not is_allowed:
                    raise refusal(TOPIC)
                if (topic.name, wanted.partition_index) in twice:
                    raise KafkaError(ErrorCode.invalid_request, "the partition is named twice")
                found.append(_look_up(services, request, topic.name, wanted))
            except (KafkaError, StorageError) as error:
                found.append({**_UNKNOWN, "error_code": code_of(error)})
            yield
    return found


def _response(
    request: "Request[ListOffsetsRequest]", found: Iterable[_Found | _Search], searched: Iterator[_Found]
) -> Work[list[dict[str, Any]]]:
    topics, left = [], iter(found)
    for topic in request.body.topics:
        partitions = []
        for wanted, one in zip(topic.partitions, left, strict=False):
            offset = next(searched) if isinstance(one, _Search) else one
            partitions.append({"partition_index": wanted.partition_index, **offset})
            yield
        topics.append({"name": topic.name, "partitions": partitions})
    return topics


def _look_up(
    services: Services, request: "Request[ListOffsetsRequest]", topic: str, wanted: "ListOffsetsRequest.Partition"
) -> _Found | _Search:
    timestamp = wanted.timestamp
    if timestamp < _OLDEST_SPECIAL or request.version < _FIRST_VERSION.get(timestamp, 0):
        raise KafkaError(
            ErrorCode.unsupported_version, f"timestamp {timestamp} does not exist in version {request.version}"
        )
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
    return _Search(partition, timestamp, up_to)


async def _search(services: Services, search: _Search) -> _Found:
    partition, timestamp, up_to = search
    try:
        found = await services.time_lookups.find(partition.log, timestamp, up_to)
    except StorageError as error:
        return {**_UNKNOWN, "error_code": code_of(error)}
    if found is None:
        return _UNKNOWN
    return {"timestamp": found.timestamp, "offset": found.offset, "leader_epoch": partition.leader_epoch}


def _at(partition: Partition, offset: int) -> _Found:
    return {"timestamp": -1, "offset": offset, "leader_epoch": partition.leader_epoch}


def refuse(request: "Request[ListOffsetsRequest]", code: ErrorCode) -> Body:
    def partition(wanted: "ListOffsetsRequest.Partition") -> dict[str, Any]:
        return {"partition_index": wanted.partition_index, "error_code": code, **_UNKNOWN}

    def topic(named: "ListOffsetsRequest.Topic") -> dict[str, Any]:
        return {"name": named.name, "partitions": LazyArray(named.partitions, partition)}

    return {"topics": LazyArray(request.body.topics, topic)}
