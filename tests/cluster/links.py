"""The links between the members of a test cluster, as the test sees them; see ``link_process.py``.

Members are brokers by their id, ``client`` for all who are not brokers, and ``zk`` for the ZooKeeper ensemble.
"""

import subprocess
import sys
import threading
from collections.abc import Iterable
from types import TracebackType

Direction = tuple[str, str]


def both_ways(one: object, other: object) -> list[Direction]:
    return [(str(one), str(other)), (str(other), str(one))]


class Links:
    """Owns the process that all bytes go through. ``cut`` and the others return when it is so."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.cluster.link_process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
            start_new_session=True,
        )
        self._lock = threading.Lock()
        self._faulty: set[Direction] = set()

    def listen(self, target_port: int, target: object, source: object = "-") -> int:
        """A port that leads to ``target_port``. Without a source, connections are told apart by their client ids."""
        return int(self._order(f"listen {target_port} {target} {source}"))

    def cut(self, directions: Iterable[Direction]) -> None:
        self._each("cut", directions)

    def garble(self, directions: Iterable[Direction]) -> None:
        self._each("garble", directions)

    def drop(self, source: object, target: object) -> None:
        """Ends the connections that are open now. Both sides are told, and can connect again at once."""
        self._order(f"drop {source}>{target}")

    def heal(self) -> None:
        """All that were cut or garbled."""
        if self._faulty:
            self._each("heal", set(self._faulty))
            self._faulty.clear()

    def _each(self, word: str, directions: Iterable[Direction]) -> None:
        directions = list(directions)
        self._faulty.update(directions)
        self._order(f"{word} " + " ".join(f"{source}>{target}" for source, target in directions))

    def _order(self, line: str) -> str:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with self._lock:
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()
            answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError("the process that carries the links has ended")
        return answer.strip()

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.kill()
        self._process.wait()
        self._process.stdout.close()

    def __enter__(self) -> "Links":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
