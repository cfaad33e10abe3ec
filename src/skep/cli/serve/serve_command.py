"""``skep serve``: gathers options from a file, the environment and the command line, and runs a broker or several."""

import os
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from skep.base.errors import OptionError, StartupError

ENVIRONMENT_PREFIX = "SKEP_"


def register(app: typer.Typer) -> None:
    app.command("serve")(serve)


def serve(
    config: Annotated[
        Path | None, typer.Option("--config", "-c", help="Options in TOML, under Kafka's names.", show_default=False)
    ] = None,
    data_dir: Annotated[
        str | None, typer.Option("--data-dir", help="Where the data lies; made when missing. [default: skep-data]")
    ] = None,
    listen: Annotated[
        str | None, typer.Option("--listen", help="host:port; port 0 takes a free one. [default: 127.0.0.1:9092]")
    ] = None,
    advertise: Annotated[
        str | None, typer.Option("--advertise", help="host:port that clients are told, if it is another one.")
    ] = None,
    node_id: Annotated[
        int | None, typer.Option("--node-id", min=0, help="The broker's id, its own in the cluster. [default: 1]")
    ] = None,
    brokers: Annotated[
        int | None, typer.Option("--brokers", min=1, max=100, metavar="N", help="Run N brokers, each a process.")
    ] = None,
    metadata: Annotated[
        str | None,
        typer.Option("--metadata", help="What makes brokers a cluster: sqlite:FILE or zk://HOST:PORT,.../CHROOT."),
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="Any option; may be given many times.")
    ] = None,
) -> None:
    """Run a broker, or a cluster of them, until Ctrl-C or SIGTERM.

    Every Kafka client can use it as it is. Options come from the file, then from the environment (SKEP_NUM_PARTITIONS=4
    is num.partitions=4), then from --set, then from the other flags; the later one wins. All of them are listed in
    docs/CONFIGURATION.md.

    With --brokers N there are N of them, to use the cores of one machine or to try out a cluster. Their ids and ports
    count up from --node-id and --listen; the data of each is in a directory of its own, broker-ID, and their metadata
    in one file beside them, unless --metadata says where. There is one log, with the broker's id in front of each line.
    A broker that ends, whatever the reason, is started again. One Ctrl-C stops them one after the other, each handing
    over what it leads; a second one stops those that are left at once.

    Brokers on several machines are a cluster when all of them have the same --metadata zk://... and each an id of its
    own; see docs/CLUSTER.md.

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
        # Each source by itself: a later one wins also when it uses another name of the same option.
        texts = {
            **without_aliases(_from_file(config) if config else {}),
            **without_aliases(_from_environment(os.environ)),
            **without_aliases(_from_settings(settings or [])),
            **{name: text for name, text in flags.items() if text is not None},
        }
        exit_code = _run_one(texts) if brokers is None else _run_several(texts, brokers)
    except (OptionError, StartupError) as error:
        print(f"skep: {error}", file=sys.stderr)
        raise typer.Exit(2) from None
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
    """``num.partitions = 4``, ``"num.partitions" = 4`` and a table ``[num]`` with ``partitions = 4`` are one thing."""
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
    """``SKEP_LOG_SEGMENT_BYTES`` is ``log.segment.bytes``. A name that is no option is left to other uses of SKEP_."""
    from skep.base.config.broker_config import option_names

    by_variable = {name.upper().replace(".", "_"): name for name in option_names()}
    found = {}
    for variable, text in environment.items():
        if variable.startswith(ENVIRONMENT_PREFIX):
            rest = variable.removeprefix(ENVIRONMENT_PREFIX)
            # Our own options begin with "skep." themselves: SKEP_DISK_CLEAN_RATIO is enough for them.
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
