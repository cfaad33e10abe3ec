"""Running a pipeline: start Spark with a Connect server, register the definitions, follow the events of the run.

``spark-pipelines run`` does the same. Here it runs in this process, so that progress can be shown, Ctrl-C ends all
processes, and errors name the file they come from. The Connect server listens on a free port of 127.0.0.1 and requires
a token.

The events of a run arrive in a thread of their own. The main thread shows them, and looks meanwhile for signals and for
the broker.
"""

import json
import os
import queue
import secrets
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, Any

from skep.cli.command_config import in_environment
from skep.cli.failures import CommandError
from skep.cli.spark.pipeline_definitions import register_definitions
from skep.cli.spark.pipeline_graph import FlowGraph
from skep.cli.spark.pipeline_progress import RunProgress, batch_of
from skep.cli.spark.pipeline_project import Project
from skep.cli.spark.spark_driver import RunAbandoned, spark_driver
from skep.cli.spark.spark_failures import spark_errors
from skep.cli.spark.table_files import rows_of_batch

_SERVICE = "org.apache.spark.sql.connect.service.SparkConnectService$"
TICK_S = 0.2


@dataclass(frozen=True)
class Selection:
    """The tables to update; with none named, all tables, incrementally."""

    refresh: Sequence[str] = ()
    full_refresh: Sequence[str] = ()
    full_refresh_all: bool = False
    dry: bool = False


def run_graph(
    project: Project,
    selection: Selection,
    progress: RunProgress,
    spark: Any,
    settings: Mapping[str, str],
    *,
    registered: Callable[[FlowGraph], None] = lambda graph: None,
    tick: Callable[[], None] | None = None,
) -> None:
    """Registers the definitions in the Connect session ``spark`` and follows the run to its end.

    ``registered`` is called before the run starts. ``tick`` is called several times a second and may raise; the run
    then ends when the session is closed. Raises CommandError if a flow fails or the pipeline is invalid.
    """
    from pyspark.pipelines.spark_connect_pipeline import create_dataflow_graph, start_run

    try:
        with spark_errors():
            graph_id = create_dataflow_graph(spark, project.catalog, project.database, settings)
            graph = register_definitions(project, spark, graph_id)
            progress.defined(graph)
            registered(graph)
            with _counting_rows(spark, progress):
                events = start_run(
                    spark,
                    graph_id,
                    full_refresh=selection.full_refresh,
                    full_refresh_all=selection.full_refresh_all,
                    refresh=selection.refresh,
                    dry=selection.dry,
                    storage=project.storage,
                )
                for event in _received(events, tick or progress.tick):
                    if "pipeline_event_result" in event:
                        progress.event(event["pipeline_event_result"].event.message)
            progress.end()
    except RunAbandoned:
        raise
    except CommandError as error:
        progress.end()
        raise CommandError(_failure(progress) or str(error)) from None
    # A run can end without an error although a flow failed. A flow that was retried successfully is not "failed".
    if (failure := _failure(progress)) is not None:
        raise CommandError(failure)


def _failure(progress: RunProgress) -> str | None:
    """Returns the error of the first failed flow, which says more than the error of the run."""
    failed = progress.failed_flow()
    return None if failed is None else failed.failure


def _received(events: Iterator[Any], tick: Callable[[], None]) -> Iterator[Any]:
    """Yields the events, for which a thread waits, and calls ``tick`` meanwhile. Raises what the thread raised."""
    arrived: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()

    def receive() -> None:
        try:
            for event in events:
                arrived.put(("event", event))
        except BaseException as error:  # raised again in the main thread
            arrived.put(("error", error))
        else:
            arrived.put(("end", None))

    # A daemon: if tick raises, the thread waits until the session is closed.
    threading.Thread(target=receive, name="pipeline events", daemon=True).start()
    while True:
        try:
            kind, value = arrived.get(timeout=TICK_S)
        except queue.Empty:
            tick()
            continue
        if kind == "error":
            raise value
        if kind == "end":
            return
        yield value
        tick()


@contextmanager
def _counting_rows(spark: Any, progress: RunProgress) -> Iterator[None]:
    listener = listener_for(progress)
    spark.streams.addListener(listener)
    yield
    # Waits for outstanding events, so that the last batches are counted. Not after an error or Ctrl-C: the server may
    # be gone by then, and the wait would not end.
    spark.streams.removeListener(listener)


def listener_for(progress: RunProgress) -> Any:
    """Returns a StreamingQueryListener that updates ``progress``."""
    from pyspark.sql.streaming.listener import StreamingQueryListener

    class Rows(StreamingQueryListener):
        def onQueryStarted(self, event: Any) -> None:
            pass

        def onQueryProgress(self, event: Any) -> None:
            batch = batch_of(json.loads(event.progress.json), rows_of_batch)
            if batch is not None:
                progress.batch(batch)

        def onQueryIdle(self, event: Any) -> None:
            pass

        def onQueryTerminated(self, event: Any) -> None:
            pass

    return Rows()


@contextmanager
def connected(project: Project, log: IO[bytes]) -> Iterator[tuple[Any, dict[str, str]]]:
    """Opens a Connect session. Yields it and the properties that a session can set; the others are fixed in the JVM."""
    token = secrets.token_urlsafe(32)
    settings = {
        **project.settings,
        "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": "0",
        "spark.connect.authenticate.token": token,
        "spark.sql.artifact.isolation.enabled": "true",
        "spark.sql.artifact.isolation.alwaysApplyClassloader": "true",
    }
    with in_environment(project.client), spark_driver(settings, log) as context:
        from pyspark.sql import SparkSession
        from pyspark.sql.connect.session import SparkSession as ConnectSession

        # Keeps a reference to the server's session, from which Connect sessions are created.
        server_session = SparkSession(context)
        session_names = {setting._1() for setting in context._jvm.PythonSQLUtils.listRuntimeSQLConfigs()}
        changeable = {n: v for n, v in project.settings.items() if n in session_names or not n.startswith("spark.")}
        port = getattr(getattr(context._jvm, _SERVICE), "MODULE$").localPort()
        # pyspark.sql.functions use this variable to choose between classic and Connect.
        os.environ["SPARK_CONNECT_MODE_ENABLED"] = "1"
        try:
            # "localhost" is the only host to which pyspark sends a token without TLS.
            spark = ConnectSession.builder.remote(f"sc://localhost:{port}/;token={token}").getOrCreate()
            try:
                for name, value in changeable.items():
                    spark.conf.set(name, value)
                yield spark, changeable
            except (KeyboardInterrupt, RunAbandoned):
                # To release the session is to wait for the end of its run.
                spark.release_session_on_close = False
                raise
            finally:
                spark.stop()
        finally:
            del os.environ["SPARK_CONNECT_MODE_ENABLED"]
            del server_session
