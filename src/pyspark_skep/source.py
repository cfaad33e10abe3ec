"""The data source as Spark sees it: its name, the schema of its rows, and who reads and writes them.

Options and rows are those of Spark's own Kafka connector, so that ``format("skep")`` in place of ``format("kafka")``
is the whole change. Options are checked here, on the driver, before anything is asked of a broker.
"""

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from pyspark_skep.read.read_options import ReadOptions, is_read, read_options, warn_of_ignored
from pyspark_skep.read.row_schema import row_schema
from skep.base.errors import OptionError

if TYPE_CHECKING:
    from pyspark.sql.datasource import (
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
    )


class DefaultSource(DataSource):
    """Holds the options as given. Readers and writers get them parsed, and are what is sent to executors."""

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        # Here because a source that is read is made once for a query, and its schema and readers are asked for often.
        # A stream's sink is made anew for every micro-batch: writers warn themselves.
        if is_read(options):
            warn_of_ignored(options)

    @classmethod
    def name(cls) -> str:
        return "skep"

    def schema(self) -> StructType:
        # Not known here: whether it will be a batch or a stream. What depends on that is checked by the two below.
        return row_schema(read_options(self.options).include_headers)

    def reader(self, schema: StructType) -> "DataSourceReader":
        options = read_options(self.options, streaming=False)
        _check_schema(schema, options)
        from pyspark_skep.read.batch_reader import BatchReader, FilteringReader

        return FilteringReader(options) if options.push_filters else BatchReader(options)

    def streamReader(self, schema: StructType) -> "DataSourceStreamReader":
        options = read_options(self.options, streaming=True)
        _check_schema(schema, options)
        from pyspark_skep.read.stream_reader import StreamReader

        return StreamReader(options)

    def writer(self, schema: StructType, overwrite: bool) -> "DataSourceWriter":
        from pyspark_skep.write.writer import batch_writer

        return batch_writer(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> "DataSourceStreamWriter":
        from pyspark_skep.write.writer import stream_writer

        return stream_writer(self.options, schema, overwrite)


def _check_schema(schema: StructType, options: ReadOptions) -> None:
    """A schema that the user gave is not asked of ``schema()``; only the one that rows have can be given."""
    expected = row_schema(options.include_headers)
    if [(field.name, field.dataType) for field in schema] != [(field.name, field.dataType) for field in expected]:
        raise OptionError(
            f"the rows of a topic are {expected.simpleString()}, not {schema.simpleString()}: "
            "give no schema, and select and cast what you need"
        )
