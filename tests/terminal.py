"""A command in a terminal, for tests of what a person types and sees."""

import os
import pty
import select
import subprocess
import time
from collections.abc import Mapping, Sequence
from types import TracebackType

from tests.waiting import PATIENCE_S

BELL = "\x07"
CTRL_C, CTRL_D, CTRL_P = "\x03", "\x04", "\x10"


class Terminal:
    """Runs a command with a terminal as its input and output. ``screen`` is all that it has printed."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self.screen = ""
        self._printed = b""
        self._seen = 0
        self._master, slave = pty.openpty()
        # A terminal without escape sequences: what is printed is plain text.
        variables = {**environment, "TERM": "dumb", "COLUMNS": "200"}
        self.process = subprocess.Popen(
            command, stdin=slave, stdout=slave, stderr=slave, env=variables, start_new_session=True,
            preexec_fn=_take_terminal,
        )  # fmt: skip
        os.close(slave)

    def __enter__(self) -> "Terminal":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._master)

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def wait_for(self, text: str, timeout_s: float = PATIENCE_S) -> str:
        """Returns what was printed since the last call, up to ``text``."""
        deadline = time.monotonic() + timeout_s
        while (found := self.screen.find(text, self._seen)) < 0:
            assert self._read(deadline), f"{text!r} was not printed after {self.screen[self._seen :]!r}"
        before, self._seen = self._seen, found + len(text)
        return self.screen[before : self._seen]

    def interrupt(self, until: str, timeout_s: float = PATIENCE_S) -> None:
        """Types Ctrl-C until ``until`` is printed. Python's readline misses a signal that comes while it echoes."""
        deadline = time.monotonic() + timeout_s
        while until not in self.screen[self._seen :] and time.monotonic() < deadline:
            self.type(CTRL_C)
            again = time.monotonic() + 5.0
            while until not in self.screen[self._seen :] and self._read(again):
                pass
        self.wait_for(until, 0)

    def wait_for_end(self, timeout_s: float = PATIENCE_S) -> int:
        """Returns the exit code, when all that the command printed is on the screen."""
        deadline = time.monotonic() + timeout_s
        while self._read(deadline):
            pass
        return self.process.wait(max(0.0, deadline - time.monotonic()))

    def _read(self, deadline: float) -> bool:
        """Reads what is printed next. Returns whether there was something before the deadline and the end."""
        ready, _, _ = select.select([self._master], [], [], max(0.0, deadline - time.monotonic()))
        try:
            data = os.read(self._master, 65536) if ready else b""
        except OSError:
            data = b""  # the command has ended
        # As a whole: a piece may end inside of a character, or between carriage return and line feed.
        self._printed += data
        self.screen = self._printed.decode(errors="replace").replace("\r\n", "\n").replace(BELL, "")
        return bool(data)


def _take_terminal() -> None:
    """Makes the terminal that of the new session, so that Ctrl-C in it is a signal."""
    import fcntl
    import termios

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
