"""Where the options of ``skep serve`` come from: a TOML file, the environment, ``--set``. Later ones override.

Every value keeps its origin (a file and line, a variable), and a bad value is reported with it. An unknown name is an
error in a file and in ``--set``. In the environment it is a warning: a variable is often set for something else, as
Kubernetes sets SKEP_SERVICE_HOST for a service that is called skep.
"""

import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from skep.base.config.broker_config import option_names, read_broker_config, without_aliases
from skep.base.errors import OptionError
from skep.base.unknown_names import did_you_mean

PREFIX = "SKEP_"
OTHER_VARIABLES = re.compile(
    r"SKEP_(BOOTSTRAP|COMMAND_CONFIG|SEED|(TEST|BENCH|EXPLORE)_\w+|SERVICE_(HOST|PORT\w*)|PORT(_\w+)?)"
)
"""Variables of other commands, of the tests, and of Kubernetes: neither options nor mistyped ones."""
_TABLE = re.compile(r"\s*\[([^\[\]]+)\]\s*(#.*)?")
_KEY = re.compile(r"\s*([^=#\[]+?)\s*=")


class Given(NamedTuple):
    """An option as it was given."""

    name: str
    text: str
    origin: str
    """Follows a message: `` (SKEP_NUM_PARTITIONS)``. Empty where the user has just typed it."""


def options_from(*sources: Iterable[Given]) -> dict[str, str]:
    """Returns the options by their main names. Raises OptionError, with the origin, for a bad value or name.

    Aliases are resolved per source, so that a later source wins even if it uses another name of the same option.
    """
    texts: dict[str, str] = {}
    for source in sources:
        given = list(source)
        for one in given:
            try:
                read_broker_config({one.name: one.text})
            except OptionError as error:
                raise OptionError(f"{error}{one.origin}") from None
        texts |= without_aliases({one.name: one.text for one in given})
    return texts


def from_file(path: Path) -> list[Given]:
    try:
        content = path.read_text()
        tables = tomllib.loads(content)
    except OSError as error:
        raise OptionError(f"cannot read {path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise OptionError(f"{path} is not TOML: {error}") from None
    lines = _lines_of(content)
    return [Given(name, text, _in_file(path, lines.get(name))) for name, text in _flatten("", tables)]


def _in_file(path: Path, line: int | None) -> str:
    return f" ({path})" if line is None else f" ({path}, line {line})"


def _lines_of(content: str) -> dict[str, int]:
    """Returns the line of each option. tomllib does not tell; unusual spellings (inline tables) are not found."""
    lines: dict[str, int] = {}
    prefix = ""
    for number, line in enumerate(content.splitlines(), 1):
        if table := _TABLE.fullmatch(line):
            prefix = _plain(table[1]) + "."
        elif key := _KEY.match(line):
            lines.setdefault(prefix + _plain(key[1]), number)
    return lines


def _plain(key: str) -> str:
    """Returns ``num.partitions`` for ``num . "partitions"``."""
    return ".".join(part.strip().strip("\"'") for part in key.split("."))


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


def from_environment(environment: Mapping[str, str]) -> tuple[list[Given], list[str]]:
    """Returns the options, ``SKEP_LOG_SEGMENT_BYTES`` for ``log.segment.bytes``, and a warning for each unknown one."""
    by_variable = {_variable(name): name for name in option_names()}
    given, warnings = [], []
    for variable, text in environment.items():
        if not variable.startswith(PREFIX):
            continue
        # Skep's own options begin with "skep." already: SKEP_DISK_CLEAN_RATIO stands for skep.disk.clean.ratio.
        # SKEP_SKEP_DISK_CLEAN_RATIO does so, too.
        name = by_variable.get(variable) or by_variable.get(variable.removeprefix(PREFIX))
        if name is not None:
            given.append(Given(name, text, f" ({variable})"))
        elif not OTHER_VARIABLES.fullmatch(variable):
            hint = did_you_mean(variable, by_variable, most=1)
            warnings.append(f"{variable} is ignored: there is no such option{hint}")
    return given, warnings


def _variable(name: str) -> str:
    return PREFIX + name.removeprefix("skep.").upper().replace(".", "_")


def from_settings(settings: Iterable[str]) -> list[Given]:
    given = []
    for setting in settings:
        name, equals, text = setting.partition("=")
        if not equals:
            raise OptionError(f"--set {setting}: expected NAME=VALUE")
        given.append(Given(name.strip(), text, ""))
    return given
