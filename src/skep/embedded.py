"""What a broker in a child process runs: ``python -m skep.embedded``, see ``broker_process.py``; ends with its parent.

Apart from ``skep serve`` so that nothing of the command line has to be imported, and so that a parent that is killed
leaves no broker behind: the pipe to it breaks, and it stops.
"""

import json
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1
_LONGEST_LINE = 1 << 20


def main() -> int:
    # kio imports hypothesis where it is installed, as it is beside most test suites; a broker has no use for it.
    sys.modules.setdefault("hypothesis", None)  # type: ignore[arg-type]
    _wake_up_when_the_parent_dies()
    options = _options_from(sys.stdin.fileno())
    if options is None:
        return 0
    from skep.app import run

    return run(options, stop_at_eof=True)


def _options_from(descriptor: int) -> dict[str, str] | None:
    """The options on the first line; None when the parent went away before it had written them."""
    line = b""
    # Byte by byte, and without Python's buffer: what follows the line is for the event loop to notice.
    while not line.endswith(b"\n"):
        read = os.read(descriptor, 1)
        if not read or len(line) > _LONGEST_LINE:
            return None
        line += read
    options: dict[str, str] = json.loads(line)
    return options


def _wake_up_when_the_parent_dies() -> None:
    """A child that was paused (SIGSTOP) would never see its standard input end; to all others SIGCONT is nothing."""
    import ctypes

    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGCONT))


if __name__ == "__main__":
    raise SystemExit(main())
