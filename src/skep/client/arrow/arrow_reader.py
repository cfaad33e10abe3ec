"""Reads a topic as an Arrow table or as a stream of Arrow batches, for pandas, polars and DuckDB.

The partitions and the range of offsets of each are determined at the beginning. Records that are written meanwhile are
not part of the result, so the reading ends.
"""

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from numbers import Integral
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

from skep.base.ids import TopicPartition
from skep.client.arrow_libraries import columnar, pyarrow
from skep.client.cluster_client import ClusterClient
from skep.client.errors import ClientError
from skep.client.fetch.partition_reader import DEFAULT_FETCH_MAX_BYTES, PartitionReader
from skep.client.list_offsets import EARLIEST, LATEST, list_offsets
from skep.client.security.client_security import ClientSecurity
from skep.client.topic_info import describe_topics

if TYPE_CHECKING:
    import pyarrow as pa

DEFAULT_MAX_ROWS = 100_000
ISOLATIONS = {"read_committed": True, "read_uncommitted": False}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NAMED = {"earliest": EARLIEST, "latest": LATEST}

Where = str | int | datetime
"""``"earliest"``, ``"latest"``, an offset, or a datetime: the first record at or after it."""


class PartitionRange(NamedTuple):
    """The offsets that are read of one partition; ``end`` is exclusive."""

    partition: int
    start: int
    end: int


def read_arrow(bootstrap: str, topic: str, **options: Any) -> "pa.Table":
    """Returns the records of a topic as one table; the options are those of ``read_batches``."""
    return read_batches(bootstrap, topic, **options).read_all()


def read_batches(
    bootstrap: str,
    topic: str,
    *,
    partitions: Sequence[int] | None = None,
    start: Where | Mapping[int, Where] = "earliest",
    end: Where | Mapping[int, Where] = "latest",
    isolation: str = "read_committed",
    headers: bool = False,
    max_rows: int = DEFAULT_MAX_ROWS,
    fetch_max_bytes: int = DEFAULT_FETCH_MAX_BYTES,
    timeout_s: float = 30.0,
    client_id: str = "skep-arrow",
    config: Mapping[str, Any] | None = None,
) -> "pa.RecordBatchReader":
    """Returns the records of a topic, one partition after the other, in batches of about ``max_rows``.

    The memory is bounded. Columns: key, value, topic, partition, offset, timestamp, timestampType and, with
    ``headers``, headers. ``start`` and ``end`` (exclusive) are for all partitions, or a mapping by partition; a
    partition that the mapping lacks is read from its beginning, or to its end.

    ``config`` has the security settings of the client, under the names of librdkafka or of Java: security.protocol,
    sasl.*, ssl.*. Other properties of clients have no effect.
    """
    pa = pyarrow()
    if isolation not in ISOLATIONS:
        raise ClientError(f"isolation must be {' or '.join(ISOLATIONS)}, not '{isolation}'")
    committed = ISOLATIONS[isolation]
    security = ClientSecurity.of(config or {})
    cluster = ClusterClient(bootstrap, client_id=client_id, timeout_s=timeout_s, security=security)
    try:
        info = describe_topics(cluster, [topic])[topic]
        chosen = _chosen(topic, partitions, info.partition_count)
        ranges = _ranges(cluster, topic, chosen, start, end, committed)
    except BaseException:
        cluster.close()
        raise
    options = {"committed": committed, "headers": headers, "max_rows": max_rows, "fetch_max_bytes": fetch_max_bytes}
    batches = _batches(cluster, topic, info.topic_id, ranges, options)
    return pa.RecordBatchReader.from_batches(table_schema(headers=headers), batches)


def table_schema(*, headers: bool) -> "pa.Schema":
    """Returns the columns of Spark's Kafka source, in its order."""
    pa = pyarrow()
    key, value, *others = columnar().record_schema(headers=headers)
    return pa.schema([key, value, pa.field("topic", pa.string()), pa.field("partition", pa.int32()), *others])


def _batches(
    cluster: ClusterClient, topic: str, topic_id: UUID, ranges: Sequence[PartitionRange], options: Mapping[str, Any]
) -> "Iterator[pa.RecordBatch]":
    pa = pyarrow()
    schema = table_schema(headers=options["headers"])
    with cluster:
        for partition, start, end in ranges:
            topics, numbers = pa.array([], pa.string()), pa.array([], pa.int32())
            for batch in PartitionReader(cluster, topic, topic_id, partition, start=start, end=end, **options):
                rows = batch.num_rows
                if rows > len(topics):
                    # The values are the same in every row; a batch takes a slice.
                    topics, numbers = (
                        pa.repeat(pa.scalar(topic), rows),
                        pa.repeat(pa.scalar(partition, pa.int32()), rows),
                    )
                key, value, *others = batch.columns
                yield pa.RecordBatch.from_arrays([key, value, topics[:rows], numbers[:rows], *others], schema=schema)


def _chosen(topic: str, partitions: Sequence[int] | None, count: int) -> list[int]:
    if partitions is None:
        return list(range(count))
    for one in partitions:
        if not 0 <= one < count:
            raise ClientError(f"topic '{topic}' has partitions 0 to {count - 1}, not {one}")
    return list(dict.fromkeys(map(int, partitions)))


def _ranges(
    cluster: ClusterClient,
    topic: str,
    partitions: Sequence[int],
    start: Where | Mapping[int, Where],
    end: Where | Mapping[int, Where],
    committed: bool,
) -> list[PartitionRange]:
    # The ends first: otherwise a log start that advances in between could be after the end.
    ends = _resolved(cluster, topic, _by_partition("end", end, partitions, "latest"), committed)
    wanted = _by_partition("start", start, partitions, "earliest")
    starts = _resolved(cluster, topic, wanted, committed)
    if any(wanted[one] == starts[one] > ends[one] for one in partitions):
        _check_starts(cluster, topic, starts, start)
    return [PartitionRange(one, starts[one], ends[one]) for one in partitions if starts[one] < ends[one]]


def _check_starts(
    cluster: ClusterClient, topic: str, starts: Mapping[int, int], given: Where | Mapping[int, Where]
) -> None:
    """Raises ClientError for an offset past the log end, which is a mistake, as ``skep consume`` refuses it.

    One offset for all partitions may be past the end of some, because partitions differ in length.
    """
    latest = list_offsets(cluster, {TopicPartition(topic, one): LATEST for one in starts}, committed=False)
    ends = {one: latest[TopicPartition(topic, one)] or 0 for one in starts}
    if isinstance(given, Mapping):
        for one, offset in starts.items():
            if offset > ends[one]:
                raise ClientError(
                    f"offset {offset} is past the end of partition {topic}-{one}: its log end offset is {ends[one]}"
                )
    elif (offset := max(starts.values())) > (furthest := max(ends.values())):
        raise ClientError(f"offset {offset} is past the end of topic '{topic}': its log end offset is {furthest}")


def _by_partition(
    name: str, where: Where | Mapping[int, Where], partitions: Sequence[int], otherwise: Where
) -> dict[int, Where]:
    if not isinstance(where, Mapping):
        return dict.fromkeys(partitions, _plain(where))
    if unknown := sorted(set(where) - set(partitions)):
        raise ClientError(f"{name} has partition {unknown[0]}, which is not read")
    return {one: _plain(where.get(one, otherwise)) for one in partitions}


def _plain(where: Where) -> Where:
    """Returns a Python int for an offset of another type, such as numpy's."""
    return int(where) if isinstance(where, Integral) else where


def _resolved(cluster: ClusterClient, topic: str, wanted: Mapping[int, Where], committed: bool) -> dict[int, int]:
    """Returns the offsets; for a datetime after the last record, the end of the log."""
    offsets = {one: where for one, where in wanted.items() if isinstance(where, int) and where >= 0}
    asked = {TopicPartition(topic, one): _timestamp(where) for one, where in wanted.items() if one not in offsets}
    found = list_offsets(cluster, asked, committed=committed)
    nowhere = {one: LATEST for one, offset in found.items() if offset is None}
    found |= list_offsets(cluster, nowhere, committed=committed)
    return offsets | {partition: offset or 0 for (_, partition), offset in found.items()}


def _timestamp(where: Where) -> int:
    if isinstance(where, datetime):
        # As everywhere in Python, a datetime without a time zone is in the zone of the machine. Rounded up, for the
        # first record at or after it.
        return -((_EPOCH - where.astimezone(UTC)) // timedelta(milliseconds=1))
    if isinstance(where, str) and where in _NAMED:
        return _NAMED[where]
    if isinstance(where, int) and where in _NAMED.values():
        return where
    raise ClientError(f"'{where}' is not a position in a topic: give earliest, latest, an offset or a datetime")
