"""``skep serve``: gathers the options of a broker from a file, the environment and the command line, and runs it."""

import os
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from skep.base.errors import OptionError

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
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="Any option; may be given many times.")
    ] = None,
) -> None:
    """Run a broker until Ctrl-C or SIGTERM.

    Every Kafka client can use it as it is. Options come from the file, then from the environment (SKEP_NUM_PARTITIONS=4
    is num.partitions=4), then from --set, then from the other flags; the later one wins. All of them are listed in
    docs/CONFIGURATION.md.

    Examples:

      skep serve

      skep serve --data-dir /var/lib/skep --listen 0.0.0.0:9092 --advertise broker.example.org:9092

      skep serve --set log.flush.interval.messages=1 --set log.retention.hours=24
    """
    flags = {"log.dirs": data_dir, "listeners": listen, "advertised.listeners": advertise}
    from skep.base.broker_config import without_aliases

    try:
        # Each source by itself: a later one wins also when it uses another name of the same option.
        texts = {
            **without_aliases(_from_file(config) if config else {}),
            **without_aliases(_from_environment(os.environ)),
            **without_aliases(_from_settings(settings or [])),
            **{name: text for name, text in flags.items() if text is not None},
        }
    except OptionError as error:
        print(f"skep: {error}", file=sys.stderr)
        raise typer.Exit(2) from None
    raise typer.Exit(_run(texts))


def _run(texts: Mapping[str, str]) -> int:
    from skep.app import run

    return run(texts)


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
    from skep.base.broker_config import option_names

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
