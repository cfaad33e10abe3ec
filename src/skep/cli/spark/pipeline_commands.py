"""``skep pipeline``: create, validate, run and inspect data pipelines on Spark that read and write topics."""

import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated

import typer

from skep.cli import output
from skep.cli.connection import Cluster, Properties, pairs
from skep.cli.failures import CommandError, UsageError
from skep.cli.moments import parse_duration_ms
from skep.cli.spark.pipeline_template import write_project
from skep.cli.spark.spark_driver import check_java, import_pyspark

if TYPE_CHECKING:
    from collections.abc import Iterator

    from skep.cli.spark.pipeline_graph import FlowGraph
    from skep.cli.spark.pipeline_project import Project
    from skep.cli.spark.run_control import StopRequest

Folder = Annotated[Path, typer.Argument(metavar="DIR", help="The project folder, with spark-pipeline.yml.")]
Master = Annotated[
    str | None,
    typer.Option("--master", metavar="URL", help="The Spark master: local[N], spark://host:7077, yarn, k8s://..."),
]
Settings = Annotated[
    list[str] | None, typer.Option("--conf", "-c", metavar="NAME=VALUE", help="A Spark property. Repeatable.")
]
Broker = Annotated[
    str | None,
    typer.Option(
        "--bootstrap-server",
        "--bootstrap",
        "-b",
        envvar="SKEP_BOOTSTRAP",
        metavar="HOST:PORT",
        help="Broker addresses, instead of the project's skep.bootstrap.",
    ),
]


def register(app: typer.Typer) -> None:
    pipeline = typer.Typer(
        no_args_is_help=True, rich_markup_mode=None, help="Create, validate, run and inspect pipelines on Spark."
    )
    for command in (init, run, validate, graph, show):
        pipeline.command(command.__name__)(command)
    app.add_typer(pipeline, name="pipeline")


def init(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The name of the project and its new folder.")],
    bootstrap: Broker = None,
) -> None:
    """Create a project: a folder with a working pipeline and a README.

    A space in the name, and other characters that Spark does not support in paths, become dashes in the folder's name.

    \b
    Examples:
      skep pipeline init shop
      skep pipeline init shop --bootstrap broker.example.com:9092
    """
    from skep.cli.spark.pipeline_project import safe_name, unsafe_character

    wanted = Path(name)
    folder = wanted.with_name(safe_name(wanted.name)) if wanted.name not in ("", "..") else wanted
    if found := unsafe_character(str(folder.resolve())):
        raise CommandError(
            f"the path {folder.resolve()} contains {found!r}, which Spark does not support in the path of a project's "
            "storage; create the project in another folder"
        )
    folder = write_project(folder, bootstrap, wanted.resolve().name)
    output.line(f"Created {folder}. To create its topics, load sample orders and run it:")
    output.line("  for topic in orders orders.large orders.bad; do skep topics create $topic --if-not-exists; done")
    output.line(f"  skep produce orders < {folder}/data/orders.jsonl")
    output.line(f"  skep pipeline run {folder}")


def run(
    folder: Folder = Path("."),
    master: Master = None,
    refresh: Annotated[
        list[str] | None,
        typer.Option("--refresh", metavar="TABLE,...", help="Update only these tables. Repeatable."),
    ] = None,
    full_refresh: Annotated[
        list[str] | None,
        typer.Option(
            "--full-refresh", metavar="TABLE,...", help="Clear these tables and compute them again. Repeatable."
        ),
    ] = None,
    full_refresh_all: Annotated[
        bool, typer.Option("--full-refresh-all", help="Clear all tables and compute them again.")
    ] = False,
    continuous: Annotated[
        bool, typer.Option("--continuous", help="Run again whenever a topic has new records, until stopped.")
    ] = False,
    every: Annotated[
        str | None, typer.Option("--every", metavar="TIME", help="Run again this often, like 1m, until stopped.")
    ] = None,
    patience: Annotated[
        str,
        typer.Option("--patience", metavar="TIME", help="How long to wait for a broker, and to retry a failed flow."),
    ] = "60s",
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object per run, for scripts.")] = False,
    conf: Settings = None,
    bootstrap: Broker = None,
    properties: Properties = None,
) -> None:
    """Run a pipeline over the new records of its topics.

    The run ends when all of them are processed; --continuous and --every go on, in the same Spark session. For each
    flow the output has the rows read and written, the bad rows that good_rows left out, the lag (records that are not
    read yet) and the time: on a terminal as a table that is updated, otherwise as lines, and at the end as a table.

    If a broker does not answer, or a flow fails, the reason is printed at once. The run waits and retries, and fails
    when the patience is over. Ctrl-C and SIGTERM stop the run after the current batch, a second time at once; the next
    run continues there. Spark's log is spark.log in the project's storage.

    \b
    Examples:
      skep pipeline run shop
      skep pipeline run shop --every 1m
      skep pipeline run shop --full-refresh orders,revenue
      skep pipeline run shop --master spark://host:7077 --conf spark.executor.memory=4g
    """
    chosen = (_names(refresh), _names(full_refresh))
    if full_refresh_all and any(chosen):
        raise UsageError("--full-refresh-all cannot be used with --refresh or --full-refresh")
    if continuous and every is not None:
        raise UsageError("--continuous and --every cannot be used together")
    every_s, patience_s = None if every is None else _seconds(every, "--every"), _seconds(patience, "--patience")
    if every_s == 0:
        raise UsageError("--every 0s: expected more than nothing; --continuous runs whenever there are new records")
    from skep.cli.spark.run_control import retries_within

    with _stoppable() as stop:
        project = _project(folder, master, conf, bootstrap, properties, retries=retries_within(patience_s))
        from skep.cli.spark.pipeline_display import display_for_stdout
        from skep.cli.spark.pipeline_run import Selection
        from skep.cli.spark.pipeline_runs import PipelineRuns, Schedule

        runs = PipelineRuns(project, display_for_stdout(json=json), stop, patience_s)
        with _log_of(project.storage) as log:
            try:
                runs.run(Selection(*chosen, full_refresh_all), Schedule(every_s, continuous), log)
            except CommandError as error:
                raise CommandError(f"{error} (Spark's log: {log.name})") from None


def validate(
    folder: Folder = Path("."), conf: Settings = None, bootstrap: Broker = None, properties: Properties = None
) -> None:
    """Validate a pipeline without running it.

    Its files, SQL, tables and options are checked, but not whether its topics exist: Spark looks them up when a flow
    starts. Tables of earlier runs do not count: a pipeline that is valid here also runs from nothing. Nothing is
    written to the project.

    \b
    Examples:
      skep pipeline validate shop
    """
    _dry_run(folder, conf, bootstrap, properties)
    output.line("The pipeline is valid.")


def graph(
    folder: Folder = Path("."),
    svg: Annotated[
        Path | None, typer.Option("--svg", metavar="FILE", help="Write a picture (SVG) instead of text.")
    ] = None,
    conf: Settings = None,
    bootstrap: Broker = None,
    properties: Properties = None,
) -> None:
    """Show the flows of a pipeline, with the numbers of the last run.

    Spark is started only if the definitions have changed since the last run.

    \b
    Examples:
      skep pipeline graph shop
      skep pipeline graph shop --svg shop.svg
    """
    from skep.cli.spark.graph_picture import svg_of, text_of
    from skep.cli.spark.last_run import digest_of, load_last_run

    import_pyspark()
    from skep.cli.spark.pipeline_project import load_project

    project = load_project(folder, pairs(conf, "--conf"))
    last = load_last_run(project)
    drawn = last.graph if last is not None and last.definitions == digest_of(project) else None
    if drawn is None:
        drawn = _dry_run(folder, conf, bootstrap, properties)
    figures = last.flows if last is not None else {}
    heading = f"{project.name}: the last run ended {last.ended}" if last is not None else f"{project.name}: never run"
    if svg is None:
        for line in text_of(drawn, figures, heading):
            output.line(line)
        return
    try:
        svg.write_text(svg_of(drawn, figures, heading))
    except OSError as error:
        raise CommandError(f"cannot write {svg}: {error.strerror}") from None
    output.line(f"Wrote {svg}.")


def show(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A table, a view or a topic of the pipeline.")],
    folder: Folder = Path("."),
    limit: Annotated[int, typer.Option("--limit", "-n", min=0, metavar="N", help="At most this many rows.")] = 20,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object per row.")] = False,
    bootstrap: Broker = None,
    properties: Properties = None,
) -> None:
    """Print rows of a pipeline's table or topic. Spark is not started.

    A table is read from its files in the project's storage. NAME may also be a sink of the pipeline, which stands for
    its topic.

    \b
    Examples:
      skep pipeline show revenue shop
      skep pipeline show orders.bad shop --json
    """
    import_pyspark()
    from skep.cli.spark.pipeline_project import BOOTSTRAP, load_project
    from skep.cli.spark.pipeline_results import show_rows

    overrides = {} if bootstrap is None else {BOOTSTRAP: bootstrap}
    client = Cluster("", pairs(properties, "--property")).properties
    show_rows(load_project(folder, overrides, client=client), name, limit, json=json)


def _dry_run(folder: Path, conf: list[str] | None, bootstrap: str | None, properties: list[str] | None) -> "FlowGraph":
    """Validates the project in a scratch folder. Returns its graph."""
    # Importing the definitions would write __pycache__ into the project.
    sys.dont_write_bytecode = True
    with _stoppable(), tempfile.TemporaryDirectory(prefix="skep-validate-") as scratch:
        project = _project(folder, None, conf, bootstrap, properties, Path(scratch))
        from skep.cli.spark.pipeline_display import STARTING
        from skep.cli.spark.pipeline_progress import RunProgress
        from skep.cli.spark.pipeline_run import Selection, connected, run_graph

        graphs: list[FlowGraph] = []
        output.note(STARTING)
        with Path(scratch, "spark.log").open("wb") as log, connected(project, log) as (spark, settings):
            run_graph(project, Selection(dry=True), RunProgress(_Silent()), spark, settings, registered=graphs.append)
    return graphs[0]


@contextmanager
def _stoppable() -> "Iterator[StopRequest]":
    """Ends the command with the exit code of the signal, after all processes that it started."""
    from skep.cli.spark.run_control import Stopped, StopRequest

    with StopRequest().received() as stop:
        try:
            yield stop
        except (Stopped, KeyboardInterrupt):
            output.note("skep: stopped")
            raise SystemExit(stop.exit_code) from None


class _Silent:
    """Shows nothing: an error names the flow, and there is nothing else to see."""

    def note(self, message: str) -> None:
        pass

    def changed(self, flow: object, flows: object) -> None:
        pass

    counted = changed


def _project(
    folder: Path,
    master: str | None,
    conf: list[str] | None,
    bootstrap: str | None,
    properties: list[str] | None,
    scratch: Path | None = None,
    retries: int | None = None,
) -> "Project":
    """Loads the project. Raises CommandError if Java, Spark or the cluster is missing."""
    check_java()
    import_pyspark()
    from skep.cli.spark.pipeline_project import BOOTSTRAP, RETRIES, load_project

    overrides = pairs(conf, "--conf")
    if master is not None:
        overrides["spark.master"] = master
    if bootstrap is not None:
        overrides[BOOTSTRAP] = bootstrap
    client = Cluster("", pairs(properties, "--property")).properties
    project = load_project(folder, overrides, scratch, client)
    if retries is not None:
        project.settings.setdefault(RETRIES, str(retries))
    if project.bootstrap is not None:
        # Checked before Spark, which takes seconds to start and would report it less clearly.
        Cluster(project.bootstrap, project.client).metadata()
    return project


def _log_of(storage: str) -> IO[bytes]:
    """Opens a new log for this run: in the storage if that is a local folder, else in a temporary file."""
    if not storage.startswith("file://"):
        return tempfile.NamedTemporaryFile(prefix="skep-pipeline-", suffix=".log", delete=False)
    folder = Path(storage.removeprefix("file://"))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return (folder / "spark.log").open("wb")
    except OSError as error:
        raise CommandError(f"cannot write to the storage {folder}: {error.strerror}") from None


def _names(lists: list[str] | None) -> list[str]:
    return [name.strip() for names in lists or () for name in names.split(",") if name.strip()]


def _seconds(text: str, option: str) -> float:
    try:
        return parse_duration_ms(text) / 1000
    except UsageError as error:
        raise UsageError(f"{option}: {error}") from None
