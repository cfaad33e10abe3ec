"""Topics as tables: the columns of each, and its rows as an Arrow table.

A table has a column for each field of the JSON values, and these columns:

==============  ===========================================================
``_key``        the key as text
``_value``      the value as text, also if it is not JSON
``_partition``  the partition
``_offset``     the offset
``_timestamp``  the create or append time, by message.timestamp.type
==============  ===========================================================

A field with one of these names is left out. Of fields that differ only in case, one is kept. The fields of a value
that is not JSON or does not match the schema are null.

With an archive, offsets below the log start come from its files and the others from the log, as in Spark's source: no
record is read twice. If retention deletes records while they are read, the archive is opened again and continues.
"""

import itertools
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from skep.base.ids import TopicPartition, show_topic_id
from skep.cli import output
from skep.cli.connection import Cluster
from skep.cli.failures import CommandError, UsageError
from skep.cli.skep_client import skep_client
from skep.cli.sql.value_parser import arrow_type, columns, decoded
from skep.cli.sql.value_schema import RECORD_COLUMNS, RECORD_KINDS, Struct, UnknownType, columns_of, inferred, parse_ddl
from skep.client.arrow_libraries import pyarrow
from skep.client.cluster_client import ClusterClient
from skep.client.errors import MissingExtra, OffsetOutOfRange
from skep.client.fetch.partition_reader import PartitionReader
from skep.client.list_offsets import EARLIEST, LATEST, list_offsets
from skep.client.topic_info import TopicInfo, describe_topics

if TYPE_CHECKING:
    import pyarrow as pa

    from skep.client.archive.archive_folder import Archive

SAMPLED_RECORDS = 10_000
"""The number of records from which fields are inferred if no schema is given."""
ROWS_PER_BATCH = 100_000
READ_COLUMNS = ("key", "value", "partition", "offset", "timestamp")


class TopicTables:
    """The topics of a cluster, with the schemas that the user gave and the folder of archives, if any."""

    def __init__(
        self,
        bootstrap: str,
        schemas: Mapping[str, str] | None = None,
        archive: Path | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> None:
        self.bootstrap = bootstrap
        self.cluster = Cluster(bootstrap, properties)
        self.archive = archive
        self._schemas = dict(schemas or {})
        self._noted: set[tuple[str, ...]] = set()

    def given(self, topic: str) -> str | None:
        """Returns the schema that the user gave, as DDL."""
        return self._schemas.get(topic)

    def fields(self, topic: str) -> Struct:
        """Returns the fields that are columns: those of the given schema, else those of the first records."""
        ddl = self._schemas.get(topic)
        if ddl is not None:
            return self._columns(topic, parse_ddl(ddl))
        with closing(self._batches(topic)) as batches:
            return self._inferred(topic, batches)

    def ddl(self, topic: str) -> str:
        """Returns the fields as DDL for Spark, which may know types that are not known here."""
        try:
            return self.fields(topic).columns()
        except UnknownType:
            return self._schemas[topic]

    def described(self, topic: str) -> list[tuple[str, str]]:
        """Returns the names and types of all columns."""
        try:
            fields = [(name, kind.ddl()) for name, kind in self.fields(topic).fields]
        except UnknownType:
            # A type that only Spark knows.
            fields = [(self._schemas[topic], "")]
        return fields + [(name, kind.ddl()) for name, kind in RECORD_KINDS.items()]

    def table(self, topic: str) -> "pa.Table":
        """Reads a topic up to its current end."""
        arrow = _arrow()
        with closing(self._batches(topic)) as reader:
            batches = list(reader)
        ddl = self._schemas.get(topic)
        try:
            fields = self._inferred(topic, batches) if ddl is None else self._columns(topic, parse_ddl(ddl))
        except UnknownType as error:
            raise UsageError(f"--schema {topic}: {error}; use --engine spark for types that only Spark has") from None
        kinds = [*fields.fields, *RECORD_KINDS.items()]
        schema = arrow.schema([arrow.field(name, arrow_type(kind)) for name, kind in kinds])
        return arrow.Table.from_batches([_parsed(batch, fields, schema) for batch in batches], schema)

    def archived(self, topic: str) -> bool:
        """Returns whether the folder of archives has this topic."""
        from skep.client.archive.archive_folder import STATE, topic_folder

        return self.archive is not None and (topic_folder(self.archive, topic) / STATE).exists()

    def _inferred(self, topic: str, batches: "Iterable[pa.RecordBatch]") -> Struct:
        values = (text for batch in batches for text in _texts(batch["value"]).to_pylist() if text is not None)
        return self._columns(topic, inferred(map(decoded, itertools.islice(values, SAMPLED_RECORDS))))

    def _columns(self, topic: str, fields: Struct) -> Struct:
        kept, duplicates = columns_of(fields.names())
        if duplicates and (topic, *duplicates) not in self._noted:
            self._noted.add((topic, *duplicates))
            names = ", ".join(duplicates)
            output.note(
                f"Topic {topic}: fields that differ from a column only in case are found in _value only: {names}."
            )
        return Struct(tuple((name, kind) for name, kind in fields.fields if name in kept))

    def _batches(self, topic: str) -> "Generator[pa.RecordBatch, None, None]":
        """Yields the columns of READ_COLUMNS, one partition after the other. Errors become CommandErrors."""
        _arrow()
        try:
            with skep_client(self.cluster) as cluster:
                info = describe_topics(cluster, [topic])[topic]
                archive = self._open_archive(info) if self.archived(topic) else None
                partitions = [TopicPartition(topic, one) for one in range(info.partition_count)]
                # The ends first: otherwise a log start that advances in between could be after the end.
                ends = list_offsets(cluster, dict.fromkeys(partitions, LATEST), committed=True)
                starts = list_offsets(cluster, dict.fromkeys(partitions, EARLIEST), committed=True)
                for one in partitions:
                    start, end = starts[one] or 0, ends[one] or 0
                    if archive is not None:
                        part = archive.partitions.get(one.partition)
                        # A partition that the archive does not know was added after its last run; it starts at 0.
                        start = 0 if part is None else min(part.start, start)
                    for batch in self._partition(cluster, info, archive, one.partition, start, starts[one] or 0, end):
                        yield _chosen(batch, one.partition)
        except OSError as error:
            where = f"{error.filename}: " if error.filename else ""
            raise CommandError(f"{where}{error.strerror or error}") from None

    def _partition(
        self,
        cluster: ClusterClient,
        info: TopicInfo,
        archive: "Archive | None",
        partition: int,
        start: int,
        log_start: int,
        end: int,
    ) -> "Iterator[pa.RecordBatch]":
        """Yields the records from ``start`` up to ``end``: those below ``log_start`` from the archive."""
        while start < end:
            if start < log_start:
                if archive is None:
                    raise CommandError(
                        f"retention deleted offsets {start} to {log_start - 1} of partition {info.name}-{partition} "
                        "while they were read; run the query again"
                    )
                yield from _archived(archive, partition, start, min(log_start, end), log_start)
                start = log_start
            reader = PartitionReader(
                cluster, info.name, info.topic_id, partition, start=start, end=end, max_rows=ROWS_PER_BATCH
            )
            try:
                yield from reader
                return
            except OffsetOutOfRange as error:
                # Retention deleted what was to be read. The archive may have been continued meanwhile.
                if error.wanted >= error.log_start:
                    raise
                start, log_start = error.wanted, error.log_start
                archive = self._open_archive(info) if archive is not None else None

    def _open_archive(self, info: TopicInfo) -> "Archive":
        from skep.client.archive.archive_folder import Archive, topic_folder

        assert self.archive is not None
        archive = Archive.open(topic_folder(self.archive, info.name))
        if archive.topic_id != info.topic_id:
            raise CommandError(
                f"{archive.folder} is the archive of another topic '{info.name}': it has the id "
                f"{show_topic_id(archive.topic_id)}, the topic has {show_topic_id(info.topic_id)}"
            )
        return archive


def _archived(archive: "Archive", partition: int, start: int, end: int, log_start: int) -> "Iterator[pa.RecordBatch]":
    """Yields archived records. Raises CommandError if some of them are in no file."""
    from skep.client.archive.archive_reader import read_files

    for first, last in archive.missing(partition, start, end):
        raise CommandError(
            f"{archive.topic}-{partition}: offsets {first} to {last - 1} are neither in its log, which begins at "
            f"{log_start}, nor in the archive in {archive.folder}"
        )
    for lost in archive.lost(partition, start, end):
        raise CommandError(str(lost))
    yield from read_files(archive.files(partition, start, end), start, end, headers=False)


def _chosen(batch: "pa.RecordBatch", partition: int) -> "pa.RecordBatch":
    arrow = pyarrow()
    numbers = arrow.repeat(arrow.scalar(partition, arrow.int32()), batch.num_rows)
    cells = [numbers if name == "partition" else batch.column(name) for name in READ_COLUMNS]
    return arrow.RecordBatch.from_arrays(cells, READ_COLUMNS)


def _parsed(batch: "pa.RecordBatch", fields: Struct, schema: "pa.Schema") -> "pa.RecordBatch":
    arrow = pyarrow()
    key, value = _texts(batch["key"]), _texts(batch["value"])
    parsed = columns(map(decoded, value.to_pylist()), fields) if fields.fields else []
    others = [batch[name].cast(schema.field(column).type) for name, column in zip(READ_COLUMNS[2:], RECORD_COLUMNS[2:])]  # noqa: B905
    return arrow.RecordBatch.from_arrays([*parsed, key, value, *others], schema=schema)


def _texts(binary: Any) -> Any:
    """Returns a binary column as text; bytes that are not UTF-8 become replacement characters, as in Spark."""
    arrow = pyarrow()
    try:
        return binary.cast(arrow.string())
    except arrow.ArrowInvalid:
        texts = [None if one is None else one.decode(errors="replace") for one in binary.to_pylist()]
        return arrow.array(texts, arrow.string())


def _arrow() -> Any:
    try:
        return pyarrow()
    except MissingExtra as error:
        raise CommandError(str(error)) from None
