"""The data source as Spark sees it: its name, the schema of its rows, its readers and writers.

Options and rows are those of Spark's own Kafka connector, so a query changes only ``format("kafka")`` to
``format("skep")``. Options are checked here, on the driver, before the first request to a broker.
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
    """Holds the options as given. Readers and writers get them parsed, and Spark sends those to executors."""

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        # Spark creates the source once for a query that reads, but calls schema() and reader() often, so the warnings
        # are logged here. For a stream's sink it creates one for every micro-batch, so writers log their own.
        if is_read(options):
            warn_of_ignored(options)

    @classmethod
    def name(cls) -> str:
        return "skep"

    def schema(self) -> StructType:
        # Whether this is a batch or a stream is not known yet; the two methods below check what depends on it.
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
    """Raises OptionError unless a schema that the user gave, for which Spark skips ``schema()``, fits the rows."""
    expected = row_schema(options.include_headers)
    if [(field.name, field.dataType) for field in schema] != [(field.name, field.dataType) for field in expected]:
        raise OptionError(
            f"the rows of a topic are {expected.simpleString()}, not {schema.simpleString()}: "
            "do not give a schema; select and cast columns after load()"
        )
