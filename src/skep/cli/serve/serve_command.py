"""``skep serve``: collect options from a file, the environment and the command line, and run one or more brokers."""

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from skep.base.errors import OptionError, StartupError
from skep.cli.failures import UsageError

ENVIRONMENT_PREFIX = "SKEP_"


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
            metavar="HOST:PORT",
            help="The address to listen on; port 0 is any free port. [default: 127.0.0.1:9092]",
        ),
    ] = None,
    advertise: Annotated[
        str | None,
        typer.Option("--advertise", metavar="HOST:PORT", help="The address for clients, if it differs from --listen."),
    ] = None,
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
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="Set any broker option. Repeatable.")
    ] = None,
) -> None:
    """Run a broker, or a cluster of brokers, until Ctrl-C or SIGTERM.

    Options come from the file, then the environment (SKEP_NUM_PARTITIONS=4 is num.partitions=4), then --set, then the
    other flags; later ones override earlier ones. All options are listed in docs/CONFIGURATION.md.

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
      skep serve --data-dir /var/lib/skep --listen 0.0.0.0:9092 --advertise broker.example.org:9092
      skep serve --node-id 2 --metadata zk://zk1:2181,zk2:2181,zk3:2181/skep --listen 0.0.0.0:9092
      skep serve --set log.flush.interval.messages=1 --set log.retention.hours=24
    """
    flags = {
        "log.dirs": data_dir,
        "listeners": listen,
        "advertised.listeners": advertise,
        "node.id": None if node_id is None else str(node_id),
        "skep.metadata": metadata,
    }
    from skep.base.config.broker_config import without_aliases

    try:
        # Aliases are resolved per source, so that a later source wins even if it uses another name of the same option.
        texts = {
            **without_aliases(_from_file(config) if config else {}),
            **without_aliases(_from_environment(os.environ)),
            **without_aliases(_from_settings(settings or [])),
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
    return run(texts)


def _run_several(texts: Mapping[str, str], count: int) -> int:
    from skep.base.config.broker_config import read_broker_config
    from skep.broker_group import run
    from skep.cli.serve.local_cluster import check_directory, options_of_brokers, with_ports

    data_dir = read_broker_config(texts).log_dirs
    check_directory(data_dir, several=True)
    brokers, reserved = with_ports(options_of_brokers(texts, count))
    try:
        return run(brokers, data_dir)
    finally:
        for port in reserved:
            port.release()


def _from_file(path: Path) -> dict[str, str]:
    try:
        tables = tomllib.loads(path.read_text())
    except OSError as error:
        raise OptionError(f"cannot read {path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise OptionError(f"{path} is not TOML: {error}") from None
    return dict(_flatten("", tables))


def _flatten(prefix: str, table: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Joins the names of nested tables: ``[num]`` with ``partitions = 4`` is ``num.partitions = 4``."""
    flat = []
    for name, value in table.items():
        if isinstance(value, dict):
            flat += _flatten(f"{prefix}{name}.", value)
        else:
            flat.append((f"{prefix}{name}", _as_text(value)))
    return flat


def _as_text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return ",".join(map(str, value))
    return str(value)


def _from_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """``SKEP_LOG_SEGMENT_BYTES`` is ``log.segment.bytes``. Other variables are ignored: SKEP_ has other uses, too."""
    from skep.base.config.broker_config import option_names

    by_variable = {name.upper().replace(".", "_"): name for name in option_names()}
    found = {}
    for variable, text in environment.items():
        if variable.startswith(ENVIRONMENT_PREFIX):
            rest = variable.removeprefix(ENVIRONMENT_PREFIX)
            # Skep's own options begin with "skep." already: SKEP_DISK_CLEAN_RATIO stands for skep.disk.clean.ratio.
            name = by_variable.get(rest) or by_variable.get(variable)
            if name is not None:
                found[name] = text
    return found


def _from_settings(settings: list[str]) -> dict[str, str]:
    texts = {}
    for setting in settings:
        name, equals, text = setting.partition("=")
        if not equals:
            raise OptionError(f"--set {setting}: expected NAME=VALUE")
        texts[name.strip()] = text
    return texts
