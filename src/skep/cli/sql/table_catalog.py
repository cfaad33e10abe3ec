"""What a query of ``skep sql`` can name: the topics of the cluster and, with ``--pipeline``, the tables of a pipeline.

A table of the pipeline comes before a topic of the same name, as in ``skep pipeline show``.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from skep.cli.connection import Cluster
from skep.cli.failures import CommandError, UsageError
from skep.cli.spark.table_files import files_of_table, read_rows
from skep.cli.sql.topic_tables import TopicTables
from skep.cli.sql.value_schema import UnknownType, parse_ddl, shown_name

if TYPE_CHECKING:
    import pyarrow as pa


class TableCatalog:
    """Names are looked up when it is created and by ``refresh``."""

    def __init__(self, topics: TopicTables, folders: Mapping[str, Path] | None = None) -> None:
        self.topics = topics
        self.folders = dict(folders or {})
        """The tables of a pipeline, each with the folder of its files."""
        self._cluster = Cluster(topics.bootstrap)
        self._names: set[str] = set()
        self.refresh()

    def refresh(self) -> None:
        """Asks the cluster for its topics. Raises CommandError if no broker answers."""
        self._names = set(self._cluster.metadata().topics)

    def names(self) -> set[str]:
        return self._names | self.folders.keys()

    def listed(self) -> list[tuple[str, str]]:
        """Returns the names that a reader looks for, each with its kind; internal topics are left out."""
        topics = {name for name in self._names - self.folders.keys() if not name.startswith("__")}
        return sorted([*((name, "topic") for name in topics), *((name, "table") for name in self.folders)])

    def shown_names(self) -> list[str]:
        """Returns the names as a query writes them, some in backticks."""
        return [shown_name(name) for name, _ in self.listed()]

    def check_schemas(self, topics: Iterable[str]) -> None:
        """Raises UsageError for a given schema that cannot be right, before an engine is started."""
        for topic in topics:
            ddl = self.topics.given(topic)
            try:
                parse_ddl(ddl or "")
            except UnknownType:
                pass  # Spark has more types.
            except UsageError as error:
                raise UsageError(f"--schema {topic}: {error}") from None

    def described(self, name: str) -> list[tuple[str, str]]:
        """Returns the names and types of the columns of a table."""
        if name not in self.folders:
            return self.topics.described(name)
        schema = self.arrow_table(name, limit=0).schema
        return [(field.name, str(field.type).upper()) for field in schema]

    def arrow_table(self, name: str, limit: int | None = None) -> "pa.Table":
        if name not in self.folders:
            return self.topics.table(name)
        import pyarrow as pa

        folder = self.folders[name]
        try:
            rows = read_rows(files_of_table(folder), limit)
        except (OSError, ValueError, pa.ArrowException) as error:
            raise CommandError(f"cannot read the files of {name} in {folder}: {' '.join(str(error).split())}") from None
        if rows is None:
            raise CommandError(f"the table {name} has no files yet; run the pipeline")
        return rows
