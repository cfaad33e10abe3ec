"""``--command-config FILE``: client properties in a file, as Kafka's tools have it. Also SKEP_COMMAND_CONFIG.

Every command of ``skep`` with ``--property`` gets the option (``add_command_config``). What the file says comes before
the properties on the command line, so these win. A password in it that others can read is worth a warning.
"""

import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from skep.base.environment_variables import COMMAND_CONFIG
from skep.cli.failures import UsageError

_FILE = "skep.command_config"


def add_command_config(command: Any) -> None:
    """Adds the option to a command, and to those below it, where there is ``--property`` to add to."""
    if any(parameter.name == "properties" for parameter in command.params):
        command.params.append(_option())
    for subcommand in getattr(command, "commands", {}).values():
        add_command_config(subcommand)


def _option() -> Any:
    """Lets typer make the option out of a function that has it: the arguments of its class differ by version."""
    app = typer.Typer(add_completion=False)
    app.command()(_with_the_option)
    [option] = [one for one in typer.main.get_command(app).params if one.name == "command_config"]
    return option


def _remember(context: typer.Context, path: str | None) -> str | None:
    context.meta[_FILE] = path
    return path


def _with_the_option(
    command_config: Annotated[
        str | None,
        typer.Option(
            "--command-config",
            envvar=COMMAND_CONFIG,
            metavar="FILE",
            help="A file of client properties, as for Kafka's tools.",
            expose_value=False,
            is_eager=True,
            callback=_remember,
        ),
    ] = None,
) -> None:
    pass


def with_command_config(context: typer.Context, properties: list[str] | None) -> list[str] | None:
    """Returns the properties of the file, and behind them those of the command line."""
    path = context.meta.get(_FILE)
    if path is None or context.resilient_parsing:
        return properties
    return [*(f"{name}={value}" for name, value in read_properties(path).items()), *(properties or ())]


def read_properties(path: str | None) -> dict[str, str]:
    """Returns the properties of a file; none without one. Raises UsageError, and warns of secrets that others can
    read."""
    if path is None:
        return {}
    from skep.client.errors import BadSetting
    from skep.client.security import properties_file

    try:
        found = properties_file.read_properties(path)
    except BadSetting as error:
        raise UsageError(str(error)) from None
    if properties_file.shows_secrets(path, found):
        from skep.cli import output

        output.note(f"{path} has a secret, and others can read the file; run: chmod 600 {path}")
    return found


@contextmanager
def in_environment(properties: Mapping[str, str]) -> Iterator[None]:
    """Sets COMMAND_CONFIG to a file with these properties, for the data source of Spark in processes that start inside.

    So no secret is an option of a query, which Spark may show.
    """
    from skep.client.security.properties_file import write_properties

    before = os.environ.get(COMMAND_CONFIG)
    with tempfile.TemporaryDirectory(prefix="skep-client-") as folder:
        path = Path(folder, "client.properties")
        write_properties(path, properties)
        os.environ[COMMAND_CONFIG] = str(path)
        try:
            yield
        finally:
            if before is None:
                del os.environ[COMMAND_CONFIG]
            else:
                os.environ[COMMAND_CONFIG] = before
