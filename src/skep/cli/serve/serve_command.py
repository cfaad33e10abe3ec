"""``skep serve``: collect options from a file, the environment and the command line, and run one or more brokers."""

import os
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

import typer

from skep.base.addresses import DEFAULT_BOOTSTRAP
from skep.base.errors import OptionError, StartupError
from skep.cli.failures import UsageError

PRODUCE, CONSUME = 'echo "one egg" | skep produce basket', "skep consume basket"


def register(app: typer.Typer) -> None:
    app.command("serve")(serve)


def serve(
    config: Annotated[
        Path | None,
        typer.Option(
            "--config", "-c", metavar="FILE", help="A TOML file of options, with Kafka's names.", show_default=False
        ),
    ] = None,
    data_dir: Annotated[
        str | None,
        typer.Option("--data-dir", metavar="DIR", help="The data directory; created if missing. [default: skep-data]"),
    ] = None,
    listen: Annotated[
        str | None,
        typer.Option(
            "--listen",
            metavar="ADDRESS",
            help="HOST:PORT to listen on, or a list of NAME://HOST:PORT; port 0 is any free port. "
            "[default: 127.0.0.1:9092]",
        ),
    ] = None,
    advertise: Annotated[
        str | None,
        typer.Option("--advertise", metavar="ADDRESS", help="The address for clients, if it differs from --listen."),
    ] = None,
    insecure: Annotated[
        bool,
        typer.Option("--insecure", help="Allow other machines to connect without authentication."),
    ] = False,
    node_id: Annotated[
        int | None,
        typer.Option("--node-id", min=0, metavar="ID", help="The broker id, unique in the cluster. [default: 1]"),
    ] = None,
    brokers: Annotated[
        int | None,
        typer.Option("--brokers", min=1, max=100, metavar="N", help="Run N brokers, each in its own process."),
    ] = None,
    metadata: Annotated[
        str | None,
        typer.Option(
            "--metadata",
            metavar="STORE",
            help="The cluster's metadata store: sqlite:FILE or zk://HOST:PORT,.../CHROOT.",
        ),
    ] = None,
    log_format: Annotated[
        Literal["text", "json"] | None,
        typer.Option("--log-format", help="The format of log lines on stderr. [default: text]"),
    ] = None,
    log_level: Annotated[
        Literal["DEBUG", "INFO", "WARNING", "ERROR"] | None,
        typer.Option("--log-level", case_sensitive=False, help="The least severe lines to log. [default: info]"),
    ] = None,
    user: Annotated[
        str | None,
        typer.Option(
            "--user",
            metavar="NAME",
            help="Create this user before clients are served, unless it exists.",
            show_default=False,
        ),
    ] = None,
    password_file: Annotated[
        str | None, typer.Option("--password-file", metavar="FILE", help="The file with the password of --user.")
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="Set any broker option. Repeatable.")
    ] = None,
) -> None:
    """Run a broker, or a cluster of brokers, until Ctrl-C or SIGTERM.

    Options come from the file, then the environment (SKEP_NUM_PARTITIONS=4 is num.partitions=4), then --set, then the
    other flags; later ones override earlier ones. All options are listed in docs/CONFIGURATION.md. A variable SKEP_...
    that is no option is reported and ignored.

    --brokers N runs N brokers, to use all cores of a machine or to try out a cluster. Their ids and ports count up from
    --node-id and --listen. Each has a data directory broker-ID, and their metadata is in one file beside these, unless
    --metadata is given. All log to the same output, with the broker's id at the start of each line. A broker that exits
    for any reason is restarted. The first Ctrl-C stops them one after the other, each handing over its partitions; a
    second Ctrl-C stops the remaining ones at once.

    Brokers on several machines form a cluster if they have the same --metadata zk://... and different ids; see
    docs/CLUSTER.md.

    \b
    Examples:
      skep serve
      skep serve --brokers 3
      skep serve --data-dir /var/lib/skep --listen 0.0.0.0:9092 --advertise broker.example.org:9092 --insecure
      skep serve --node-id 2 --metadata zk://zk1:2181,zk2:2181,zk3:2181/skep --listen 0.0.0.0:9092 --insecure
      skep serve --log-format json --log-level warning 2> skep.log
      skep serve --set log.flush.interval.messages=1 --set log.retention.hours=24
    """
    flags = {
        "log.dirs": data_dir,
        "listeners": listen,
        "advertised.listeners": advertise,
        "skep.insecure": "true" if insecure else None,
        "node.id": None if node_id is None else str(node_id),
        "skep.metadata": metadata,
        "skep.log.format": log_format,
        "skep.log.level": log_level,
        "skep.first.user": user,
        "skep.first.user.password.file": password_file,
    }
    from skep.cli.serve.option_sources import from_environment, from_file, from_settings, options_from

    try:
        in_environment, warnings = from_environment(os.environ)
        for warning in warnings:
            print(f"skep: warning: {warning}", file=sys.stderr)
        texts = {
            **options_from(from_file(config) if config else (), in_environment, from_settings(settings or ())),
            **{name: text for name, text in flags.items() if text is not None},
        }
        exit_code = _run_one(texts) if brokers is None else _run_several(texts, brokers)
    except (OptionError, StartupError) as error:
        raise UsageError(str(error)) from None
    raise typer.Exit(exit_code)


def _run_one(texts: Mapping[str, str]) -> int:
    from skep.app import run
    from skep.base.config.broker_config import read_broker_config
    from skep.cli.serve.local_cluster import check_directory

    check_directory(read_broker_config(texts).log_dirs, several=False)
    return run(texts, next_steps=next_steps)


def _run_several(texts: Mapping[str, str], count: int) -> int:
    from skep.base.config.broker_config import read_broker_config
    from skep.broker_group import run
    from skep.cli.serve.local_cluster import (
        check_directory,
        missing_directories,
        options_of_brokers,
        remove_unused,
        with_ports,
    )

    data_dir = os.path.abspath(read_broker_config(texts).log_dirs)
    check_directory(data_dir, several=True)
    missing = missing_directories(data_dir)
    brokers, reserved = with_ports(options_of_brokers(texts, count))
    try:
        exit_code = run(brokers, data_dir, next_steps)
    finally:
        for port in reserved:
            port.release()
    if exit_code:
        remove_unused(missing)
    return exit_code


def next_steps(bootstrap: str, prefix: str = sys.prefix) -> str:
    """Returns what is printed below the ready line: two lines to type in another terminal.

    They work as printed. The first one makes the commands and the address known there, as far as that is needed:
    someone who has just run ``make run`` has no ``skep`` on the PATH. ``prefix`` is where this Python is installed.
    """
    activate = os.path.join(prefix, "bin", "activate")
    preparations = []
    if os.path.exists(activate):
        preparations.append(f"source {shlex.quote(activate)}")
    if bootstrap.split(",")[0] != DEFAULT_BOOTSTRAP:
        preparations.append(f"export SKEP_BOOTSTRAP={bootstrap}")
    lines = [" && ".join(preparations), f"{PRODUCE} && {CONSUME}"] if preparations else [PRODUCE, CONSUME]
    return "".join(["In another terminal:\n", *(f"  {line}\n" for line in lines)])
