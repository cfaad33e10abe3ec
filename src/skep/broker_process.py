"""A broker in a process of its own, as its parent sees it: how it is started and when it is ready.

The child is ``python -m skep.embedded``. Its options go to its standard input, as one line of JSON: a password among
them would be there for everybody to see in the list of processes. That pipe then stays open for as long as the parent
lives. When it ends, so does the child, whatever the parent died of.
"""

import json
import signal
import sys
from collections.abc import Mapping

READY = " ready on "


def command(options: Mapping[str, str]) -> list[str]:
    """What to run. The arguments after the module say nothing new; they are there for who looks at the processes."""
    told = [f"{name}={options[name]}" for name in ("node.id", "listeners") if name in options]
    return [sys.executable, "-m", "skep.embedded", *told]


def first_line(options: Mapping[str, str]) -> bytes:
    """What the child's standard input begins with."""
    return json.dumps(dict(options)).encode() + b"\n"


def ready_address(line: str) -> tuple[str, int] | None:
    """The address in a broker's ready line; None for any other line."""
    if READY not in line:
        return None
    host, _, port = line.split(READY)[1].split(",")[0].rpartition(":")
    return host, int(port)


def how_it_ended(exit_code: int) -> str:
    """``was killed by SIGKILL``, ``ended with exit code 2``."""
    if exit_code >= 0:
        return f"ended with exit code {exit_code}"
    try:
        name = signal.Signals(-exit_code).name
    except ValueError:
        name = f"signal {-exit_code}"
    return f"was killed by {name}"
