"""The main program of a broker in a child process: ``python -m skep.embedded``, started by ``broker_process.py``.

It is separate from ``skep serve``, so that it need not import the command line, and so that a killed parent leaves no
broker behind: the broker stops when the pipe from its parent closes.
"""

import json
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1
_MAX_LINE_BYTES = 1 << 20


def main() -> int:
    # kio imports hypothesis if it is installed, as it is beside many test suites; a broker does not need it.
    sys.modules.setdefault("hypothesis", None)  # type: ignore[arg-type]
    _continue_when_parent_dies()
    options = _read_options(sys.stdin.fileno())
    if options is None:
        return 0
    from skep.app import run

    return run(options, stop_at_eof=True)


def _read_options(descriptor: int) -> dict[str, str] | None:
    """Reads the options from the first line; returns None if the parent ended before it wrote them."""
    line = b""
    # Unbuffered, byte by byte: what follows the line must stay in the pipe for the event loop.
    while not line.endswith(b"\n"):
        read = os.read(descriptor, 1)
        if not read or len(line) > _MAX_LINE_BYTES:
            return None
        line += read
    options: dict[str, str] = json.loads(line)
    return options


def _continue_when_parent_dies() -> None:
    """Asks the kernel for SIGCONT when the parent dies: a paused child (SIGSTOP) would never see its stdin close.

    A child that is not paused ignores SIGCONT.
    """
    import ctypes

    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGCONT))


if __name__ == "__main__":
    raise SystemExit(main())
