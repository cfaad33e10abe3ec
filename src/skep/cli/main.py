"""The ``skep`` command: a table of the modules that hold its subcommands.

A module is imported when its subcommand is used. ``skep --help`` shows the sentences of the table, and ``skep serve``
does not pay for the client library or for drawing tables.
"""

import importlib
import sys
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from skep.cli.failures import UsageError, run

COMMANDS = {
    "serve": ("skep.cli.serve.serve_command", "Run a broker."),
    "zookeeper": ("skep.cli.serve.zookeeper_command", "Run a ZooKeeper for brokers, for development."),
    "topics": ("skep.cli.topics.topic_commands", "Create, list, describe, alter and delete topics."),
    "produce": ("skep.cli.records.produce_command", "Send lines as records to a topic."),
    "consume": ("skep.cli.records.consume_command", "Print the records of a topic."),
    "groups": ("skep.cli.groups.group_commands", "See the lag of consumer groups and reset their offsets."),
    "transactions": ("skep.cli.transactions.transaction_commands", "Find transactions that hang, and abort them."),
    "cluster": ("skep.cli.cluster.cluster_commands", "See a cluster, move replicas, elect leaders."),
    "dump": ("skep.cli.dump.dump_command", "Show segment and index files in readable form and check them."),
    "pipeline": ("skep.cli.spark.pipeline_commands", "Make, check and run data pipelines on Spark."),
    "sql": ("skep.cli.spark.sql_command", "Ask topics questions in SQL, through Spark."),
    "archive": ("skep.cli.archive.archive_command", "Write a topic to Parquet files, in folders by day."),
    "replay": ("skep.cli.archive.replay_command", "Write archived records back to a topic."),
    "bench": ("skep.cli.records.bench_command", "Measure how fast a cluster takes and gives records."),
}
"""Each module has ``register(app)``, which adds its command to a Typer application."""

SETTINGS: dict[str, Any] = {
    "add_completion": False,
    "pretty_exceptions_enable": False,
    "rich_markup_mode": None,
    "context_settings": {"help_option_names": ["-h", "--help"]},
}

_WRONG_USAGE: Any = typer.BadParameter.__base__
"""typer does not export this; it is click's, or a copy of click inside typer, by typer's version."""


class LazyCommands(TyperGroup):
    """Knows the name and the sentence of every command; the command itself replaces that when it is called."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        for name, (_, sentence) in COMMANDS.items():
            self.add_command(TyperCommand(name, help=sentence))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] in COMMANDS:
            self.add_command(_load(args[0]), args[0])
        return super().resolve_command(ctx, args)


def _load(name: str) -> Any:
    module = importlib.import_module(COMMANDS[name][0])
    holder = typer.Typer(**SETTINGS)
    # With a callback of its own an application stays a group of commands, even of one.
    holder.callback()(_nothing)
    module.register(holder)
    group: Any = typer.main.get_command(holder)
    return group.commands[name]


def _nothing() -> None:
    pass


def _show_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import PackageNotFoundError, version

        try:
            typer.echo(f"skep {version('skep')}")
        except PackageNotFoundError:
            typer.echo("skep, run from its sources")
        raise typer.Exit


app = typer.Typer(cls=LazyCommands, no_args_is_help=True, **SETTINGS)


@app.callback()
def skep(
    version: bool = typer.Option(False, "--version", callback=_show_version, is_eager=True, help="Show the version."),
) -> None:
    """A message broker that every Kafka client already speaks to, and the commands around it.

    All commands but serve and dump work against any Kafka-compatible cluster; they take its address from
    --bootstrap-server, or from SKEP_BOOTSTRAP, or 127.0.0.1:9092.
    """


def call(arguments: list[str] | None = None) -> None:
    """Runs a command line; asked wrongly, it ends in one line like all failures, not in typer's four."""
    try:
        exit_code = app(arguments, prog_name="skep", standalone_mode=False)
    except _WRONG_USAGE as error:
        if error.ctx is None or error.format_message() != error.ctx.get_help():
            raise UsageError(_in_one_line(error)) from None
        # A group of commands, called without one of them, complains with its whole help.
        error.show()
        exit_code = UsageError.exit_code
    raise SystemExit(exit_code)


def _in_one_line(error: Any) -> str:
    words = " ".join(error.format_message().split()).removesuffix(".").replace("Value error, ", "")
    where = "skep" if error.ctx is None else error.ctx.command_path
    return f"{words[:1].lower()}{words[1:]} (see {where} --help)"


def main() -> None:
    # kio imports hypothesis where that is installed, for its own tests: a quarter of a second that no command needs.
    sys.modules.setdefault("hypothesis", None)  # type: ignore[arg-type]
    sys.exit(run("skep", call))


if __name__ == "__main__":
    main()
