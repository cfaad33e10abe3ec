"""What a query of ``skep sql`` can name: the topics of the cluster and, with ``--pipeline``, the tables of a pipeline.

A table of the pipeline comes before a topic of the same name, as in ``skep pipeline show``.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from skep.base.unknown_names import did_you_mean
from skep.cli.connection import unknown_topic
from skep.cli.failures import CommandError, UsageError
from skep.cli.sql.pipeline_tables import PipelineTables
from skep.cli.sql.topic_tables import TopicTables
from skep.cli.sql.value_parser import kind_of
from skep.cli.sql.value_schema import UnknownType, parse_ddl, shown_name

if TYPE_CHECKING:
    import pyarrow as pa


class TableCatalog:
    """Names are looked up when it is created and by ``refresh``."""

    def __init__(self, topics: TopicTables, pipeline: PipelineTables | None = None) -> None:
        self.topics = topics
        self.pipeline = pipeline or PipelineTables()
        self._cluster = topics.cluster
        self._names: set[str] = set()
        self.refresh()

    def refresh(self) -> None:
        """Asks the cluster for its topics. Raises CommandError if no broker answers."""
        self._names = set(self._cluster.metadata().topics)

    def names(self) -> set[str]:
        return self._names | self.pipeline.folders.keys() | self.pipeline.sinks.keys()

    def listed(self) -> list[tuple[str, str]]:
        """Returns the names that a reader looks for, each with its kind; internal topics are left out."""
        names = (name for name in self.names() if not name.startswith("__"))
        return sorted((name, "table" if name in self.pipeline.folders else "topic") for name in names)

    def shown_names(self) -> list[str]:
        """Returns the names as a query writes them, some in backticks."""
        return [shown_name(name) for name, _ in self.listed()]

    def unknown(self, name: str) -> CommandError:
        """Returns the error for a name that a query uses: it is not a table, or has to be quoted."""
        if name in self.names():
            return CommandError(f"write the name of topic '{name}' in backticks: `{name}`")
        if self.pipeline.folders:
            return CommandError(f"there is no table or topic '{name}'{did_you_mean(name, self.names())}")
        return unknown_topic(name, self._names)

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

    def topic(self, name: str) -> str | None:
        """Returns the topic that a name stands for; None for a table of the pipeline."""
        return None if name in self.pipeline.folders else self.pipeline.sinks.get(name, name)

    def described(self, name: str) -> list[tuple[str, str]]:
        """Returns the names and types of the columns of a table."""
        topic = self.topic(name)
        if topic is not None:
            return self.topics.described(topic)
        return [(field.name, kind_of(field.type).ddl()) for field in self.pipeline.arrow_table(name).schema]

    def arrow_table(self, name: str) -> "pa.Table":
        topic = self.topic(name)
        return self.pipeline.arrow_table(name) if topic is None else self.topics.table(topic)
