"""Running a pipeline: start Spark with a Connect server, register the definitions, follow the events of the run.

``spark-pipelines run`` does the same. Here it runs in this process, so that progress can be shown, Ctrl-C ends all
processes, and errors name the file they come from. The Connect server listens on a free port of 127.0.0.1 and requires
a token.
"""

import importlib.util
import os
import secrets
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from skep.cli.failures import CommandError
from skep.cli.spark.pipeline_progress import Display, RunProgress, listener_for
from skep.cli.spark.pipeline_project import Project
from skep.cli.spark.spark_driver import spark_driver
from skep.cli.spark.spark_failures import one_line, spark_errors

_SERVICE = "org.apache.spark.sql.connect.service.SparkConnectService$"


@dataclass(frozen=True)
class Selection:
    """The tables to update; with none named, all tables, incrementally."""

    refresh: Sequence[str] = ()
    full_refresh: Sequence[str] = ()
    full_refresh_all: bool = False
    dry: bool = False


def run_pipeline(project: Project, selection: Selection, display: Display, log: IO[bytes]) -> None:
    """Runs until all flows have ended. Raises CommandError if a flow fails or the pipeline is invalid."""
    progress = RunProgress(display)
    display.start()
    try:
        with connected(project, log) as (spark, settings):
            run_graph(project, selection, progress, spark, settings)
    finally:
        display.stop(progress.flows)


def run_graph(
    project: Project, selection: Selection, progress: RunProgress, spark: Any, settings: Mapping[str, str]
) -> None:
    """Registers the definitions in the Connect session ``spark`` and follows the run to its end."""
    from pyspark.pipelines.spark_connect_pipeline import create_dataflow_graph, start_run

    try:
        with spark_errors():
            graph = create_dataflow_graph(spark, project.catalog, project.database, settings)
            _register(project, spark, graph)
            with _counting_rows(spark, progress):
                for result in start_run(
                    spark,
                    graph,
                    full_refresh=selection.full_refresh,
                    full_refresh_all=selection.full_refresh_all,
                    refresh=selection.refresh,
                    dry=selection.dry,
                    storage=project.storage,
                ):
                    if "pipeline_event_result" in result:
                        progress.event(result["pipeline_event_result"].event.message)
    except CommandError as error:
        raise CommandError(_failed_flow(progress) or str(error)) from None
    # A run can end without an error although a flow failed. A flow that was retried successfully is not "failed".
    if (failure := _failed_flow(progress)) is not None:
        raise CommandError(failure)


@contextmanager
def _counting_rows(spark: Any, progress: RunProgress) -> Iterator[None]:
    listener = listener_for(progress)
    spark.streams.addListener(listener)
    yield
    # Waits for outstanding events, so that the last batches are counted. Not after an error or Ctrl-C: the server may
    # be gone by then, and the wait would not end.
    spark.streams.removeListener(listener)


def _failed_flow(progress: RunProgress) -> str | None:
    """Returns the error of the first failed flow, which says more than the error of the run."""
    failed = next((flow for flow in progress.flows.values() if flow.state == "failed"), None)
    return None if failed is None else f"flow {failed.name} failed: {one_line(failed.reason or 'Spark gave no reason')}"


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
    with spark_driver(settings, log) as context:
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
            finally:
                spark.stop()
        finally:
            del os.environ["SPARK_CONNECT_MODE_ENABLED"]
            del server_session


def _register(project: Project, spark: Any, graph: str) -> None:
    """Registers every definition file, as SQL or Python by its suffix. An error names the file."""
    from pyspark.pipelines.graph_element_registry import graph_element_registration_context
    from pyspark.pipelines.spark_connect_graph_element_registry import SparkConnectGraphElementRegistry

    registry = SparkConnectGraphElementRegistry(spark, graph)
    back = os.getcwd()
    os.chdir(project.folder)
    try:
        with graph_element_registration_context(registry):
            for path in project.definitions():
                shown = path.relative_to(project.folder)
                if path.suffix == ".sql":
                    with spark_errors(f"{shown}: "):
                        registry.register_sql(path.read_text(), shown)
                else:
                    _import(path, shown, spark, graph)
    finally:
        os.chdir(back)


def _import(path: Path, shown: Path, spark: Any, graph: str) -> None:
    from pyspark.pipelines.add_pipeline_analysis_context import add_pipeline_analysis_context
    from pyspark.pipelines.block_session_mutations import block_session_mutations

    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    module.__dict__["spark"] = spark
    try:
        with add_pipeline_analysis_context(spark=spark, dataflow_graph_id=graph, flow_name=None):
            with block_session_mutations():
                spec.loader.exec_module(module)
    except Exception as error:  # code of the user, which may raise anything; the message names its line
        line = next(
            (f.lineno for f in reversed(traceback.extract_tb(error.__traceback__)) if f.filename == str(path)), None
        )
        where = f"{shown}:{line}" if line else str(shown)
        kind = "" if hasattr(error, "getCondition") else f"{type(error).__name__}: "
        raise CommandError(f"{where}: {kind}{one_line(error)}") from None
