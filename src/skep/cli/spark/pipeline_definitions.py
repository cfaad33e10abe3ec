"""The definitions of a pipeline: its SQL and Python files, registered with Spark in a dataflow graph.

Two things are added to what Spark's own command does with them.

``withWatermark`` works on tables and views of the same pipeline. Spark's own adds the watermark at once, for which it
looks the table up in the catalog: it is not there before the first run, and a view never is. In SQL the watermark is a
clause of FROM that is resolved with the rest of the graph, so here ``df.withWatermark(column, delay)`` becomes
``SELECT * FROM df WATERMARK column DELAY OF INTERVAL delay``.

The graph of the flows is recorded for ``skep pipeline graph``.
"""

import dataclasses
import importlib.util
import os
import re
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from skep.cli.failures import CommandError
from skep.cli.spark.pipeline_graph import (
    MATERIALIZED_VIEW,
    SINK,
    TABLE,
    VIEW,
    Dataset,
    FlowGraph,
    add_sql,
    plan_inputs,
)
from skep.cli.spark.pipeline_project import Project
from skep.cli.spark.spark_failures import one_line, spark_errors

_NOT_FOUND = "TABLE_OR_VIEW_NOT_FOUND"
_EARLY = (
    "; if this pipeline defines it, a method of the DataFrame made Spark look for it too early: "
    "write select() instead of withColumn, drop, dropDuplicates or columns (docs/PIPELINES.md)"
)


def register_definitions(project: Project, spark: Any, graph_id: str) -> FlowGraph:
    """Registers every definition file, as SQL or Python by its suffix. An error names the file. Returns the graph."""
    from pyspark.pipelines.graph_element_registry import graph_element_registration_context

    graph = FlowGraph()
    registry = _recording_registry(spark, graph_id, graph)
    back = os.getcwd()
    os.chdir(project.folder)
    try:
        with graph_element_registration_context(registry), _lazy_watermarks():
            for path in project.definitions():
                shown = path.relative_to(project.folder)
                graph.file = str(shown)
                if path.suffix == ".sql":
                    with spark_errors(f"{shown}: "):
                        registry.register_sql(path.read_text(), shown)
                else:
                    _import(path, shown, spark, graph_id)
    finally:
        os.chdir(back)
    return graph.complete()


def _recording_registry(spark: Any, graph_id: str, graph: FlowGraph) -> Any:
    """Returns Spark's registry of definitions, which adds what is registered to ``graph`` as well."""
    from pyspark.pipelines.output import MaterializedView, Sink, TemporaryView
    from pyspark.pipelines.spark_connect_graph_element_registry import SparkConnectGraphElementRegistry

    class Recording(SparkConnectGraphElementRegistry):
        def register_output(self, output: Any) -> None:
            super().register_output(output)
            kinds = ((MaterializedView, MATERIALIZED_VIEW), (TemporaryView, VIEW), (Sink, SINK))
            kind = next((name for cls, name in kinds if isinstance(output, cls)), TABLE)
            topic = output.options.get("topic") if kind == SINK and output.format in ("skep", "kafka") else None
            graph.add(Dataset(output.name, kind, topic))

        def register_flow(self, flow: Any) -> None:
            made: list[Any] = []

            def query() -> Any:
                made.append(flow.func())
                return made[0]

            super().register_flow(dataclasses.replace(flow, func=query))
            plan = made[0]._plan.plan(spark.client)
            graph.add_flow(flow.name, flow.target, plan_inputs(plan))

        def register_auto_cdc_flow(self, flow: Any) -> None:
            super().register_auto_cdc_flow(flow)
            graph.add_flow(flow.name, flow.target, [Dataset(flow.source, TABLE)])

        def register_sql(self, sql_text: str, file_path: Path) -> None:
            super().register_sql(sql_text, file_path)
            add_sql(graph, sql_text)

    return Recording(spark, graph_id)


@contextmanager
def _lazy_watermarks() -> Iterator[None]:
    from pyspark.sql.connect import plan
    from pyspark.sql.connect.dataframe import DataFrame

    spark_own = DataFrame.withWatermark

    def with_watermark(self: Any, eventTime: str, delayThreshold: str) -> Any:
        # Its checks of the arguments are Spark's; what it returns is not used.
        spark_own(self, eventTime, delayThreshold)
        views = [plan.SubqueryAlias(self._plan, "watermarked")]
        return DataFrame(plan.SQL(watermark_query(eventTime, delayThreshold), views=views), session=self._session)

    DataFrame.withWatermark = with_watermark  # type: ignore[method-assign]
    try:
        yield
    finally:
        DataFrame.withWatermark = spark_own  # type: ignore[method-assign]


def watermark_query(column: str, delay: str) -> str:
    """Returns the query that adds a watermark to ``watermarked``. ``delay`` is an interval like ``10 minutes``."""
    steps = re.sub(r"^\s*interval\s+", "", delay, flags=re.IGNORECASE).strip()
    if not re.fullmatch(r"(?:\d+(?:\.\d+)?\s*[a-zA-Z]+\s*)+", steps):
        raise ValueError(f"withWatermark: '{delay}' is not a delay; expected one like '10 minutes'")
    name = column if "`" in column or "." in column else f"`{column}`"
    return f"SELECT * FROM watermarked WATERMARK {name} DELAY OF INTERVAL {steps}"


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
        raise CommandError(f"{where}: {_reason(error)}") from None


def _reason(error: Exception) -> str:
    condition = error.getCondition() if hasattr(error, "getCondition") else None
    if condition is None:
        return f"{type(error).__name__}: {one_line(error)}"
    if str(condition).startswith(_NOT_FOUND):
        name = (error.getMessageParameters() or {}).get("relationName", "").replace("`", "")  # type: ignore[attr-defined]
        return f"there is no table or view '{name}'{_EARLY}"
    return one_line(error)
