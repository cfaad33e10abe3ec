"""Files of client properties, in the format of Java's Properties, as Kafka's tools read them.

Lines that end with a backslash continue, ``=``, ``:`` or blanks end a name, and escapes are Java's.
"""

import os
import re
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path

from skep.client.errors import BadSetting
from skep.client.security.client_properties import is_secret

_SEPARATOR = re.compile(r"(?<!\\)(?:\\\\)*(\s*[=:]\s*|\s+)")
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "f": "\f"}


def read_properties(path: str) -> dict[str, str]:
    """Raises BadSetting for a file that cannot be read. Lines are not shown: they may have a password."""
    try:
        text = Path(path).read_text()
    except OSError as error:
        raise BadSetting(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise BadSetting(f"{path} is not a file of properties: it is not UTF-8") from None
    found = {}
    for number, line in _joined(text):
        name, separator, value = _split(line)
        if not separator or not name:
            raise BadSetting(f"{path}, line {number}: expected NAME=VALUE")
        found[_unescaped(name)] = _unescaped(value).strip()
    return found


def write_properties(path: Path, properties: Mapping[str, str]) -> None:
    """Writes a file that only its owner can read, and that ``read_properties`` reads again."""
    lines = [f"{name}={_escaped(value)}\n" for name, value in properties.items()]
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.writelines(lines)


def shows_secrets(path: str, properties: Mapping[str, str]) -> bool:
    """Whether others can read a secret in the file."""
    mode = os.stat(path).st_mode
    return bool(mode & (stat.S_IRGRP | stat.S_IROTH)) and any(map(is_secret, properties))


def _joined(text: str) -> Iterator[tuple[int, str]]:
    """Yields the lines with their numbers, continued ones joined, without comments and blank lines."""
    pending, begun = "", 0
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.lstrip()
        if not pending and (not line or line[0] in "#!"):
            continue
        begun = begun or number
        backslashes = len(line) - len(line.rstrip("\\"))
        if backslashes % 2:
            pending += line[:-1]
            continue
        yield begun, pending + line
        pending, begun = "", 0
    if pending:
        yield begun, pending


def _split(line: str) -> tuple[str, str, str]:
    found = _SEPARATOR.search(line)
    if found is None:
        return line, "", ""
    return line[: found.start(1)], found[1], line[found.end(1) :]


def _unescaped(text: str) -> str:
    def char(escape: re.Match[str]) -> str:
        if len(escape[1]) == 5:
            return chr(int(escape[1][1:], 16))
        return _ESCAPES.get(escape[1], escape[1])

    return _ESCAPE.sub(char, text)


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t")
