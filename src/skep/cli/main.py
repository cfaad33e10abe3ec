"""The ``skep`` command: a table of its subcommands and the modules that implement them.

A module is imported only when its subcommand is called: ``skep --help`` prints the sentences of the table, and ``skep
serve`` imports neither the client library nor rich.
"""

import importlib
import sys
from functools import partial
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from skep.cli.command_config import add_command_config
from skep.cli.failures import UsageError, run

COMMANDS = {
    "serve": ("skep.cli.serve.serve_command", "Run a broker."),
    "zookeeper": ("skep.cli.serve.zookeeper_command", "Run a ZooKeeper server for development."),
    "topics": ("skep.cli.topics.topic_commands", "Create, list, describe, alter and delete topics."),
    "produce": ("skep.cli.records.produce_command", "Send lines as records to a topic."),
    "consume": ("skep.cli.records.consume_command", "Print the records of a topic."),
    "groups": ("skep.cli.groups.group_commands", "Show the lag of groups, reset and delete their offsets."),
    "queues": ("skep.cli.queues.queue_commands", "Show share groups, redrive dead letters, recall messages."),
    "transactions": ("skep.cli.transactions.transaction_commands", "List transactions, find hanging ones, abort them."),
    "cluster": ("skep.cli.cluster.cluster_commands", "Show brokers and partitions, move replicas, set options."),
    "users": ("skep.cli.users.user_commands", "Create, list and delete users, change their passwords."),
    "acls": ("skep.cli.acls.acl_commands", "Say who may do what, and see which rule decides."),
    "quotas": ("skep.cli.quotas.quota_commands", "Limit what users, client ids and addresses may use."),
    "tls": ("skep.cli.tls.tls_commands", "Make and show certificates for TLS."),
    "health": ("skep.cli.cluster.health_command", "Tell in one line whether the cluster is healthy."),
    "dump": ("skep.cli.dump.dump_command", "Print segment and index files and check them for damage."),
    "pipeline": ("skep.cli.spark.pipeline_commands", "Create, validate and run data pipelines on Spark."),
    "sql": ("skep.cli.sql.sql_command", "Query topics in SQL, with Spark or DuckDB."),
    "archive": ("skep.cli.archive.archive_command", "Write a topic to Parquet files, in folders by day."),
    "replay": ("skep.cli.archive.replay_command", "Write archived records back to a topic."),
    "compile": ("skep.cli.serve.compile_command", "Compile the loops over records before their first use."),
    "bench": ("skep.cli.records.bench_command", "Measure produce and consume throughput."),
}
"""Each module has a function ``register(app)`` that adds its command to a Typer application."""

SETTINGS: dict[str, Any] = {
    "add_completion": False,
    "pretty_exceptions_enable": False,
    "rich_markup_mode": None,
    "context_settings": {"help_option_names": ["-h", "--help"]},
}

_WRONG_USAGE: Any = typer.BadParameter.__base__
"""click's UsageError. typer does not export it; depending on typer's version it is click's own or a bundled copy."""


class LazyCommands(TyperGroup):
    """Lists every command with its sentence, and loads the module of a command when it is called."""

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
    # Typer turns an application with a single command into that command, unless it has a callback.
    holder.callback()(_do_nothing)
    module.register(holder)
    group: Any = typer.main.get_command(holder)
    _tidy_help(group.commands[name])
    add_command_config(group.commands[name])
    return group.commands[name]


def _tidy_help(command: Any) -> None:
    """Shows arguments by their names alone. Newer versions of typer show ``{PATH}`` and ``PATH <list[Path]>``."""
    for parameter in command.params:
        if parameter.param_type_name == "argument":
            parameter.display_type_rich = _no_type
            parameter.get_usage_pieces = partial(_usage_of, parameter)
    for subcommand in getattr(command, "commands", {}).values():
        _tidy_help(subcommand)


def _no_type(ctx: Any) -> None:
    return None


def _usage_of(argument: Any, ctx: Any) -> list[str]:
    name = f"{argument.metavar}..." if argument.nargs != 1 else argument.metavar
    return [name if argument.required else f"[{name}]"]


def _do_nothing() -> None:
    pass


def _show_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import PackageNotFoundError, version

        try:
            typer.echo(f"skep {version('skep')}")
        except PackageNotFoundError:
            typer.echo("skep, not installed (run from its source tree)")
        raise typer.Exit


app = typer.Typer(cls=LazyCommands, no_args_is_help=True, **SETTINGS)


@app.callback()
def skep(
    version: bool = typer.Option(False, "--version", callback=_show_version, is_eager=True, help="Show the version."),
) -> None:
    """A message broker for Kafka clients, and commands to work with it.

    Commands that ask a cluster connect to --bootstrap-server, or to the environment variable SKEP_BOOTSTRAP, or to
    127.0.0.1:9092. They work with any Kafka-compatible cluster, except for what skep queues adds to share groups.

    A cluster with TLS or SASL needs --command-config FILE, or the environment variable SKEP_COMMAND_CONFIG: a file of
    client properties as Kafka's tools read it.
    """


def call(arguments: list[str] | None = None) -> None:
    """Runs a command line. A usage error is reported in one line, like every other error, not in typer's box."""
    try:
        exit_code = app(arguments, prog_name="skep", standalone_mode=False)
    except _WRONG_USAGE as error:
        if error.ctx is None or error.format_message() != error.ctx.get_help():
            raise UsageError(_in_one_line(error)) from None
        # A command group called without a command: click's error message is the help text.
        error.show()
        exit_code = UsageError.exit_code
    raise SystemExit(exit_code)


def _in_one_line(error: Any) -> str:
    words = " ".join(error.format_message().split()).removesuffix(".").replace("Value error, ", "")
    where = "skep" if error.ctx is None else error.ctx.command_path
    return f"{words[:1].lower()}{words[1:]} (see {where} --help)"


def main() -> None:
    # kio imports hypothesis if it is installed, which takes a quarter of a second and is needed only by kio's tests.
    sys.modules.setdefault("hypothesis", None)  # type: ignore[arg-type]
    sys.exit(run("skep", call))


if __name__ == "__main__":
    main()
