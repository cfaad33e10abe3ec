"""Starting a broker in a child process, from the parent's side: the command, the options, the ready line.

The child is ``python -m skep.embedded``. It reads its options from standard input, as one line of JSON, because command
line arguments are visible to every user of the machine, and options may contain passwords. The pipe stays open as long
as the parent lives. The child stops when the pipe closes, however the parent ended.
"""

import json
import signal
import sys
from collections.abc import Mapping

READY = " ready on "


def command(options: Mapping[str, str]) -> list[str]:
    """Returns the command line. Its arguments after the module are ignored; they identify the broker in ``ps``."""
    labels = [f"{name}={options[name]}" for name in ("node.id", "listeners") if name in options]
    return [sys.executable, "-m", "skep.embedded", *labels]


def first_line(options: Mapping[str, str]) -> bytes:
    """Returns the first line for the child's standard input."""
    return json.dumps(dict(options)).encode() + b"\n"


def ready_address(line: str) -> tuple[str, int] | None:
    """Returns the address in a broker's ready line; None for any other line."""
    if READY not in line:
        return None
    host, _, port = line.split(READY)[1].split(",")[0].rpartition(":")
    return host, int(port)


def how_it_ended(exit_code: int) -> str:
    """Returns ``was killed by SIGKILL`` or ``ended with exit code 2``."""
    if exit_code >= 0:
        return f"ended with exit code {exit_code}"
    try:
        name = signal.Signals(-exit_code).name
    except ValueError:
        name = f"signal {-exit_code}"
    return f"was killed by {name}"
