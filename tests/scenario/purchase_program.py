"""The program of docs/QUEUES.md that commits a message with PostgreSQL, as a process that dies when it is told to.

``python -m tests.scenario.purchase_program JSON`` runs the page's own code. With ``purchase`` it buys once, and dies by
SIGKILL at the moment ``dies_at``, or waits for a line at the moment ``waits_at``. Without, it answers questions.
"""

import contextlib
import json
import os
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[2] / "docs" / "QUEUES.md"
BEFORE, AFTER, END = "before the database's commit", "after the database's commit", "after the message's commit"


def code_of_the_page() -> dict[str, Any]:
    section = PAGE.read_text().partition("### With PostgreSQL")[2]
    block = re.search(r"^```python\n(.*?)^```", section, re.MULTILINE | re.DOTALL)
    assert block is not None, "the page has no program"
    names: dict[str, Any] = {}
    exec(compile(block[1], str(PAGE), "exec"), names)
    names["ASK"]["check-after-ms"] = "1000"
    return names


class Connection:
    """A connection that is watched: ``moment`` is called around the end of each transaction."""

    def __init__(self, connection: Any, moment: Any) -> None:
        self._connection, self._moment = connection, moment

    def execute(self, *arguments: Any) -> Any:
        return self._connection.execute(*arguments)

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        with self._connection.transaction():
            yield
            self._moment(BEFORE)
        self._moment(AFTER)


def main(given: dict[str, Any]) -> None:
    def moment(name: str) -> None:
        if name == given.get("dies_at"):
            os.kill(os.getpid(), signal.SIGKILL)
        if name == given.get("waits_at"):
            print("waits", flush=True)
            sys.stdin.readline()

    page = code_of_the_page()
    database, producer, consumer = page["connect"](given["bootstrap"], given["postgresql"])
    if "purchase" in given:
        page["buy"](Connection(database, moment), producer, given["purchase"], "a lamp")
        moment(END)
    else:
        page["answer_questions"](database, producer, consumer)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
