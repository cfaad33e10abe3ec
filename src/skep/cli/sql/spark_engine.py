"""``--engine spark``: queries in Spark SQL. The JVM is started by the first query, and kept until the engine is closed.

A prompt starts it before, in a thread, while the user types. If the prompt is left meanwhile, the JVM is killed.

A query is parsed as soon as Spark runs, before topics are looked at: an error in it does not wait for them. The fields
of a topic are inferred by this process (``topic_tables``), once in the life of the engine; the rows are read by Spark.
"""

import contextlib
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from skep.cli import output
from skep.cli.command_config import in_environment
from skep.cli.failures import CommandError
from skep.cli.spark.pipeline_display import STARTING
from skep.cli.spark.spark_driver import RunAbandoned, spark_driver
from skep.cli.spark.spark_failures import one_line
from skep.cli.sql.query_text import SPARK, tables_named
from skep.cli.sql.value_schema import columns_of

if TYPE_CHECKING:
    from skep.cli.sql.table_catalog import TableCatalog

_NUMBERS = ("byte", "short", "integer", "long", "float", "double", "decimal")
CANCEL_EVERY_S = 0.5


class SparkResult:
    """The rows of a DataFrame."""

    def __init__(self, frame: Any, catalog: "TableCatalog") -> None:
        self._frame = frame
        self._catalog = catalog
        self.columns: Sequence[str] = frame.columns
        self.numbers = [field.name for field in frame.schema if field.dataType.typeName() in _NUMBERS]

    def first(self, limit: int) -> Sequence[Sequence[Any]]:
        with query_errors(self._catalog):
            rows: Sequence[Sequence[Any]] = self._frame.limit(limit).collect()
            return rows

    def rows(self) -> Iterable[Sequence[Any]]:
        with query_errors(self._catalog):
            yield from self._frame.toLocalIterator(prefetchPartitions=True)


class SparkEngine:
    """A Spark of its own. The caller has called ``check_java`` before."""

    dialect = SPARK

    def __init__(self, catalog: "TableCatalog", master: str) -> None:
        self._catalog = catalog
        self._master = master
        self._running = contextlib.ExitStack()
        self._session: Any = None
        self._starting: Future[Any] | None = None
        self._process: subprocess.Popen[Any] | None = None
        self._ended = False
        self._fields: dict[str, str] = {}

    def prepare(self) -> None:
        """Starts Spark in the background. The first query waits for it."""
        output.note(STARTING)
        self._starting = ThreadPoolExecutor(1, "skep-sql-start").submit(self._start)

    def run(self, query: str) -> SparkResult:
        session = self._started()
        with query_errors(self._catalog):
            session._jsparkSession.sessionState().sqlParser().parsePlan(query)
            for name, table in tables_named(query, self._catalog.names()).items():
                self._add_view(session, name, table)
            return SparkResult(session.sql(query), self._catalog)

    def attempt(self, work: Callable[[], None]) -> None:
        """Calls ``work``, which runs a query. Ctrl-C cancels its jobs, and Spark stays; a second Ctrl-C ends Spark.

        A signal in the middle of a call to Java would break the connection to the JVM, so another thread makes them.
        """
        self._started()
        # The thread begins when it is known here: Ctrl-C while it starts would leave it alone with a query that nobody
        # cancels. The queue is read once.
        begins: SimpleQueue[bool] = SimpleQueue()
        working: Future[None] | None = None
        with ThreadPoolExecutor(1, "skep-sql") as thread:
            try:
                working = thread.submit(lambda: work() if begins.get() else None)
                begins.put(True)
                working.result()
            except KeyboardInterrupt:
                begins.put(False)
                if working is not None:
                    self._cancel(working)
                raise
            except CommandError as error:
                if self._session.sparkContext._gateway.proc.poll() is not None:
                    # Raises an error that says how the JVM ended. The next query starts another.
                    self.__exit__(type(error), error, error.__traceback__)
                raise

    def _cancel(self, working: "Future[None]") -> None:
        try:
            # Again and again: a query has several jobs, and may be between two of them.
            while not working.done():
                self._session.sparkContext.cancelAllJobs()
                wait([working], CANCEL_EVERY_S)
        except KeyboardInterrupt:
            abandoned = RunAbandoned()
            with contextlib.suppress(RunAbandoned):
                self.__exit__(RunAbandoned, abandoned, None)

    def forget(self, table: str) -> None:
        """The fields of a topic are inferred again by the next query that uses it."""
        self._fields.pop(table, None)

    def __enter__(self) -> "SparkEngine":
        return self

    def __exit__(self, *raised: Any) -> None:
        """Ends Spark, after Ctrl-C at once. Raises CommandError if its JVM had ended: that explains an error."""
        self._ended = True
        if self._starting is not None:
            # Nobody waits for a Spark that is still starting. Its error says no more than that it was killed.
            if not self._starting.done() and self._process is not None:
                _kill(self._process)
            wait([self._starting])
        self._session = self._starting = None
        self._running.__exit__(*raised)

    def _started(self) -> Any:
        if self._session is None:
            starting = self._starting
            if starting is None:
                output.note(STARTING)
                self._session = self._start()
            else:
                # Ctrl-C here does not end the start: the next query waits again.
                wait([starting])
                self._starting = None
                self._session = starting.result()
        return self._session

    def _start(self) -> Any:
        self._ended = False
        self._running.enter_context(in_environment(self._catalog.topics.cluster.properties))
        return self._running.enter_context(_session(self._master, self._launched))

    def _launched(self, process: "subprocess.Popen[Any]") -> None:
        self._process = process
        if self._ended:
            # The engine was closed before there was a process to kill.
            _kill(process)

    def _add_view(self, session: Any, name: str, table: str) -> None:
        topics, topic = self._catalog.topics, self._catalog.topic(table)
        if topic is None:
            pipeline = self._catalog.pipeline
            options = {"mergeSchema": "true", "basePath": str(pipeline.folders[table])}
            rows = session.read.options(**options).parquet(*map(str, pipeline.files(table)))
            rows.createOrReplaceTempView(_quoted(name))
            return
        if table not in self._fields:
            self._fields[table] = topics.ddl(topic)
        options = {"kafka.bootstrap.servers": topics.bootstrap}
        if topics.archived(topic):
            options["archive"] = str(Path(topics.archive or "").resolve())
        add_view(session, name, topic, options, self._fields[table])


def add_view(spark: Any, name: str, topic: str, options: dict[str, str], ddl: str) -> None:
    """Creates a temporary view ``name`` of the current records of ``topic``, with the fields of ``ddl``."""
    from pyspark.sql import functions as F
    from pyspark.sql.types import StructType

    records = spark.read.format("skep").options(**options).option("subscribe", topic).load()
    text = records["value"].cast("string")
    fields: Any = StructType.fromDDL(ddl) if ddl else StructType()
    columns, _ = columns_of(fields.fieldNames())
    data = F.from_json(text, StructType([fields[column] for column in columns])) if columns else None
    view = records.select(
        *((data[column].alias(column) for column in columns) if data is not None else ()),
        records["key"].cast("string").alias("_key"),
        text.alias("_value"),
        records["partition"].alias("_partition"),
        records["offset"].alias("_offset"),
        records["timestamp"].alias("_timestamp"),
    )
    view.createOrReplaceTempView(_quoted(name))


def _kill(process: "subprocess.Popen[Any]") -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


@contextlib.contextmanager
def _session(master: str, launched: Callable[["subprocess.Popen[Any]"], None]) -> Iterator[Any]:
    # Rows contain timestamps in the time zone of this process; queries use UTC.
    os.environ["TZ"] = "UTC"
    time.tzset()
    with tempfile.TemporaryDirectory(prefix="skep-sql-") as folder:
        settings = {
            "spark.master": master,
            "spark.app.name": "skep sql",
            "spark.sql.session.timeZone": "UTC",
            "spark.sql.warehouse.dir": Path(folder, "warehouse").as_uri(),
            "spark.sql.shuffle.partitions": "4",
        }
        with Path(folder, "spark.log").open("wb") as log, spark_driver(settings, log, launched) as context:
            from pyspark.sql import SparkSession

            yield SparkSession(context)


@contextlib.contextmanager
def query_errors(catalog: "TableCatalog") -> Iterator[None]:
    """Turns errors of Spark into CommandErrors of one line; an unknown table is reported as an unknown topic."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        yield
    except PySparkException as error:
        if error.getCondition() in ("TABLE_OR_VIEW_NOT_FOUND", "TABLE_OR_VIEW_NOT_FOUND.WITHOUT_SUGGESTION"):
            name = (error.getMessageParameters() or {}).get("relationName", "").replace("`", "")
            raise catalog.unknown(name) from None
        raise CommandError(one_line(error)) from None
    except Py4JError as error:
        raise CommandError(one_line(error)) from None
