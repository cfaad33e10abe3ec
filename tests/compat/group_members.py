"""Members of groups as the tests see them: processes that are started, frozen and killed, and say what they own."""

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.waiting import wait_until

SESSION_MS = 2_000


class Member:
    """One process. ``owned`` is None until it has been told for the first time what it has."""

    def __init__(self, options: dict[str, Any]) -> None:
        self.owned: list[int] | None = None
        self.assignments: list[list[int]] = []
        self.read: list[tuple[int, int, str]] = []
        self.has_closed = False
        self._options = options
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("group_member.py")), json.dumps(options)],
            stdout=subprocess.PIPE,
        )
        self._reader = threading.Thread(target=self._listen, daemon=True)
        self._reader.start()

    def __repr__(self) -> str:
        end = self._process.poll()
        state = "running" if end is None else f"ended with {end}"
        return f"<{self._options['client']} in {self._options['group']}, {state}, has owned {self.assignments}>"

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            said = json.loads(line)
            if "owned" in said:
                self.owned = said["owned"]
                self.assignments.append(said["owned"])
            elif "read" in said:
                self.read.append(tuple(said["read"]))
            else:
                self.has_closed = True

    def freeze(self) -> None:
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """``kill -9``: the group learns of it by silence."""
        self._process.kill()
        self._end()

    def stop(self) -> None:
        """Leaves the group, unless it is a static member."""
        self._process.terminate()
        self._end()
        assert self.has_closed, "the member did not stop cleanly"

    def _end(self) -> None:
        self._process.wait(30)
        self._close()
        self.owned = None

    def _close(self) -> None:
        """What the process has said is read to its end."""
        self._reader.join(30)
        assert self._process.stdout is not None
        self._process.stdout.close()

    def clean_up(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.send_signal(signal.SIGCONT)
            self._process.wait(30)
        self._close()


Start = Callable[..., Member]


@contextmanager
def members_of(servers: str, topic: str, group: str, client: str, strategy: str) -> Iterator[Start]:
    """Gives a function that starts another member; all are gone at the end."""
    started: list[Member] = []

    def start(**options: Any) -> Member:
        defaults = {
            "client": client,
            "servers": servers,
            "topic": topic,
            "group": group,
            "strategy": strategy,
            "session_ms": SESSION_MS,
        }
        member = Member({**defaults, **options})
        started.append(member)
        return member

    try:
        yield start
    finally:
        for member in started:
            member.clean_up()


def wait_until_shared(members: Sequence[Member], partitions: int, owners: int | None = None) -> None:
    """Until these members own each partition once, and ``owners`` of them (all, unless said) own something."""
    wanted = min(len(members), partitions) if owners is None else owners

    def is_shared() -> bool:
        owned = [partition for member in members for partition in member.owned or ()]
        return sorted(owned) == list(range(partitions)) and sum(bool(member.owned) for member in members) == wanted

    wait_until(is_shared, lambda: f"{partitions} partitions are shared by {wanted} members: {members}", 60)


def wait_until_read(members: Sequence[Member], values: set[str]) -> None:
    def missing() -> set[str]:
        return values - {value for member in members for _, _, value in list(member.read)}

    wait_until(lambda: not missing(), f"{len(values)} records are read", 60)
