"""A queue of log lines to standard error, so that logging never blocks.

A pipe that nobody reads is full after 64 KiB, and the next write to it blocks. So a thread writes, and lines that it
cannot write in time are dropped and counted. The thread is a daemon and ``close`` waits for it only ``STOP_S``, so a
broker whose log nobody reads can still stop.

Clients choose topic names, client ids and group ids. Lines show them without line breaks and control characters, so
that no client can forge a line, and limited in length. Lines are text, or JSON for programs that collect logs.
"""

import json
import logging
import queue
import sys
import threading
from datetime import UTC, datetime
from typing import TextIO

MAX_LINES = 10_000
MAX_MESSAGE_CHARACTERS = 4_000
STOP_S = 2.0
LOG_FORMATS = ("text", "json")
LOG_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")


class LineFormatter(logging.Formatter):
    """Formats a message as one line. Tracebacks, which contain our own text, follow on lines of their own."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        message = record.message
        if not message.isprintable():
            message = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in message)
        record.message = _shortened(message)
        return super().formatMessage(record)


class JsonFormatter(logging.Formatter):
    """Formats a message as one JSON object on one line, with its traceback. JSON escapes what could forge a line."""

    def __init__(self, broker_id: int) -> None:
        super().__init__()
        self._broker_id = broker_id

    def format(self, record: logging.LogRecord) -> str:
        moment = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        fields = {
            "time": moment.replace("+00:00", "Z"),
            "level": record.levelname,
            "broker": self._broker_id,
            "logger": record.name,
            "message": _shortened(record.getMessage()),
        }
        if record.exc_info:
            fields["traceback"] = self.formatException(record.exc_info)
        return json.dumps(fields)


def _shortened(message: str) -> str:
    if len(message) <= MAX_MESSAGE_CHARACTERS:
        return message
    left_out = len(message) - MAX_MESSAGE_CHARACTERS
    return f"{message[:MAX_MESSAGE_CHARACTERS]}... ({left_out} more characters)"


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
                line += f"\n{self.format(_dropped_lines(dropped))}"
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


def _dropped_lines(count: int) -> logging.LogRecord:
    text = "%d log lines were dropped because they were not read in time"
    return logging.LogRecord(__name__, logging.WARNING, __file__, 0, text, (count,), None)


def configure_logging(broker_id: int, log_format: str = "text", level: str = "INFO") -> LogQueue:
    """Sends all log lines through a queue to standard error. The caller closes it at the end."""
    handler = LogQueue()
    text = LineFormatter("%(asctime)s %(levelname)s %(message)s")
    handler.setFormatter(JsonFormatter(broker_id) if log_format == "json" else text)
    logging.getLogger().addHandler(handler)
    set_log_level(level)
    return handler


def set_log_level(level: str) -> None:
    logging.getLogger().setLevel(level)
