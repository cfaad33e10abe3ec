"""A queue of log lines to standard error, so that logging never blocks.

A pipe that nobody reads is full after 64 KiB, and the next write to it blocks. So a thread writes, and lines that it
cannot write in time are dropped and counted. The thread is a daemon and ``close`` waits for it only ``STOP_S``, so a
broker whose log nobody reads can still stop.

Clients choose topic names, client ids and group ids. Lines show them without line breaks and control characters, so
that no client can forge a line, and limited in length.
"""

import logging
import queue
import sys
import threading
from typing import TextIO

MAX_LINES = 10_000
MAX_MESSAGE_CHARACTERS = 4_000
STOP_S = 2.0


class LineFormatter(logging.Formatter):
    """Formats a message as one line. Tracebacks, which contain our own text, follow on lines of their own."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        message = record.message
        if not message.isprintable():
            message = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in message)
        if len(message) > MAX_MESSAGE_CHARACTERS:
            left_out = len(message) - MAX_MESSAGE_CHARACTERS
            message = f"{message[:MAX_MESSAGE_CHARACTERS]}... ({left_out} more characters)"
        record.message = message
        return super().formatMessage(record)


class LogQueue(logging.Handler):
    """A handler that owns a bounded queue of formatted lines and the thread that writes them."""

    def __init__(self, stream: TextIO = sys.stderr) -> None:
        super().__init__()
        self._stream = stream
        self._lines: queue.Queue[str | None] = queue.Queue(MAX_LINES)
        self._dropped = 0
        self._thread = threading.Thread(target=self._write, name="log", daemon=True)
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        # As in logging's own handlers: a line that cannot be formatted must not break its caller.
        try:
            line = self.format(record)
        except Exception:
            self.handleError(record)
            return
        try:
            self._lines.put_nowait(line)
        except queue.Full:
            self._dropped += 1

    def _write(self) -> None:
        while (line := self._lines.get()) is not None:
            dropped, self._dropped = self._dropped, 0
            if dropped:
                line += f"\n{dropped} log lines were dropped because they were not read in time"
            try:
                self._stream.write(line + "\n")
                self._stream.flush()
            except (OSError, ValueError):
                pass  # the stream is closed; the error cannot be logged

    def close(self) -> None:
        """Writes the queued lines, for ``STOP_S`` at most."""
        try:
            self._lines.put_nowait(None)
        except queue.Full:
            pass
        else:
            self._thread.join(STOP_S)
        super().close()


def configure_logging() -> LogQueue:
    """Sends all log lines through a queue to standard error. The caller closes it at the end."""
    handler = LogQueue()
    handler.setFormatter(LineFormatter("%(asctime)s %(levelname)s %(message)s"))
    root = logging.getLogger()
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    return handler
