"""``skep pipeline``: create, validate and run data pipelines on Spark that read and write topics."""

import sys
import tempfile
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated

import typer

from skep.cli import output
from skep.cli.connection import Cluster, pairs
from skep.cli.failures import CommandError, UsageError
from skep.cli.spark.pipeline_template import write_project
from skep.cli.spark.spark_driver import check_java, import_pyspark

if TYPE_CHECKING:
    from skep.cli.spark.pipeline_project import Project

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
        no_args_is_help=True, rich_markup_mode=None, help="Create, validate and run pipelines on Spark."
    )
    for command in (init, run, validate):
        pipeline.command(command.__name__)(command)
    app.add_typer(pipeline, name="pipeline")


def init(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The name of the project and its new folder.")],
    bootstrap: Broker = None,
) -> None:
    """Create a project: a folder with a working pipeline and a README.

    \b
    Examples:
      skep pipeline init shop
      skep pipeline init shop --bootstrap broker.example.com:9092
    """
    folder = write_project(Path(name), bootstrap)
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
    conf: Settings = None,
    bootstrap: Broker = None,
) -> None:
    """Run a pipeline over the new records of its topics.

    The run ends when all of them are processed. On a terminal, a table shows flows, states, rows and rates; otherwise
    each change is printed as a line. Spark's log is spark.log in the project's storage. Ctrl-C ends the run and all its
    processes; the next run continues where it stopped.

    \b
    Examples:
      skep pipeline run shop
      skep pipeline run shop --full-refresh orders,revenue
      skep pipeline run shop --master spark://host:7077 --conf spark.executor.memory=4g
    """
    chosen = (_names(refresh), _names(full_refresh))
    if full_refresh_all and any(chosen):
        raise UsageError("--full-refresh-all cannot be used with --refresh or --full-refresh")
    project = _project(folder, master, conf, bootstrap)
    from skep.cli.spark.pipeline_progress import display_for_stdout
    from skep.cli.spark.pipeline_run import Selection, run_pipeline

    with _log_of(project.storage) as log:
        try:
            run_pipeline(project, Selection(*chosen, full_refresh_all), display_for_stdout(), log)
        except CommandError as error:
            raise CommandError(f"{error} (Spark's log: {log.name})") from None


def validate(folder: Folder = Path("."), conf: Settings = None, bootstrap: Broker = None) -> None:
    """Validate a pipeline without running it.

    Its files, SQL, tables and options are checked, but not whether its topics exist: Spark looks them up when a flow
    starts. Nothing is written to the project.

    \b
    Examples:
      skep pipeline validate shop
    """
    # Importing the definitions would write __pycache__ into the project.
    sys.dont_write_bytecode = True
    with tempfile.TemporaryDirectory(prefix="skep-validate-") as scratch:
        project = _project(folder, None, conf, bootstrap, Path(scratch))
        from skep.cli.spark.pipeline_progress import display_for_stdout
        from skep.cli.spark.pipeline_run import Selection, run_pipeline

        with Path(scratch, "spark.log").open("wb") as log:
            run_pipeline(project, Selection(dry=True), display_for_stdout(), log)
    output.line("The pipeline is valid.")


def _project(
    folder: Path, master: str | None, conf: list[str] | None, bootstrap: str | None, scratch: Path | None = None
) -> "Project":
    """Loads the project. Raises CommandError if Java, Spark or the cluster is missing."""
    check_java()
    import_pyspark()
    from skep.cli.spark.pipeline_project import BOOTSTRAP, load_project

    overrides = pairs(conf, "--conf")
    if master is not None:
        overrides["spark.master"] = master
    if bootstrap is not None:
        overrides[BOOTSTRAP] = bootstrap
    project = load_project(folder, overrides, scratch)
    if project.bootstrap is not None:
        # Checked before Spark, which takes seconds to start and would report it less clearly.
        Cluster(project.bootstrap).metadata()
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
