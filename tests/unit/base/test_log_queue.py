"""Log lines: nobody who logs waits for who reads, and no client forges a line."""

import io
import json
import logging
import threading
from datetime import datetime
from typing import TextIO

from skep.base.log_queue import MAX_LINES, MAX_MESSAGE_CHARACTERS, JsonFormatter, LineFormatter, LogQueue
from tests.waiting import wait_until


def logger_to(stream: TextIO) -> tuple[logging.Logger, LogQueue]:
    handler = LogQueue(stream)
    handler.setFormatter(LineFormatter("%(levelname)s %(message)s"))
    logger = logging.Logger("test")
    logger.addHandler(handler)
    return logger, handler


class Stuck(io.StringIO):
    """A pipe that nobody reads, until somebody does."""

    def __init__(self) -> None:
        super().__init__()
        self.is_read = threading.Event()
        self.is_writing = threading.Event()

    def write(self, text: str) -> int:
        self.is_writing.set()
        self.is_read.wait()
        return super().write(text)


def test_lines_arrive_in_order() -> None:
    stream = io.StringIO()
    logger, handler = logger_to(stream)
    for number in range(100):
        logger.warning("line %d", number)
    handler.close()
    assert stream.getvalue().splitlines() == [f"WARNING line {number}" for number in range(100)]


def test_a_reader_that_does_not_read_stops_nobody() -> None:
    stream = Stuck()
    logger, handler = logger_to(stream)
    logger.warning("the first")
    assert stream.is_writing.wait(30)
    for number in range(MAX_LINES + 5):
        logger.warning("line %d", number)
    stream.is_read.set()
    while not stream.getvalue().count("line 9999"):
        pass
    handler.close()
    assert "5 log lines were dropped" in stream.getvalue()


def test_the_end_does_not_wait_for_a_reader() -> None:
    stream = Stuck()
    logger, handler = logger_to(stream)
    logger.warning("nobody reads this")
    assert stream.is_writing.wait(30)
    handler.close()
    assert not stream.getvalue()
    stream.is_read.set()


def test_a_client_cannot_forge_a_line() -> None:
    stream = io.StringIO()
    logger, handler = logger_to(stream)
    logger.warning("client %s", "a\nERROR \x1b[31mforged\r\0")
    handler.close()
    assert stream.getvalue() == "WARNING client a\\nERROR \\x1b[31mforged\\r\\x00\n"


def test_a_line_has_an_end() -> None:
    stream = io.StringIO()
    logger, handler = logger_to(stream)
    logger.warning("%s", "x" * (MAX_MESSAGE_CHARACTERS + 7))
    handler.close()
    assert stream.getvalue().endswith("... (7 more characters)\n")


def test_tracebacks_keep_their_lines() -> None:
    stream = io.StringIO()
    logger, handler = logger_to(stream)
    try:
        raise ValueError("no")
    except ValueError:
        logger.exception("failed")
    handler.close()
    lines = stream.getvalue().splitlines()
    assert lines[0] == "ERROR failed"
    assert lines[-1] == "ValueError: no"


def test_json_lines_hold_what_a_collector_needs() -> None:
    stream = io.StringIO()
    logger, handler = logger_to(stream)
    handler.setFormatter(JsonFormatter(broker_id=3))
    logger.warning("client %s", 'a\n{"level":"ERROR"}')
    try:
        raise ValueError("no")
    except ValueError:
        logger.exception("%s", "x" * (MAX_MESSAGE_CHARACTERS + 7))
    handler.close()
    first, second = map(json.loads, stream.getvalue().splitlines())
    assert (first["level"], first["broker"], first["logger"]) == ("WARNING", 3, "test")
    assert first["message"] == 'client a\n{"level":"ERROR"}'
    assert datetime.fromisoformat(first["time"]).tzinfo is not None
    assert second["message"].endswith("... (7 more characters)")
    assert second["traceback"].endswith("ValueError: no")


def test_lines_that_were_dropped_are_counted_in_json_too() -> None:
    stream = Stuck()
    logger, handler = logger_to(stream)
    handler.setFormatter(JsonFormatter(broker_id=1))
    logger.warning("the first")
    assert stream.is_writing.wait(30)
    for number in range(MAX_LINES + 5):
        logger.warning("line %d", number)
    stream.is_read.set()
    wait_until(lambda: "line 9999" in stream.getvalue(), "all lines that were kept are written")
    handler.close()
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [line["message"][:13] for line in lines if "dropped" in line["message"]] == ["5 log lines w"]
