"""How long the broker's event loop was held: the longest callbacks, in CPU time (``in_broker/sitecustomize.py``)."""

import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

HOOKS = Path(__file__).parent / "in_broker"


class Callbacks:
    """What the brokers that are started within ``noting`` have written down."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._since = self._until = 0.0

    @contextmanager
    def watched(self, since: float | None = None) -> Iterator[None]:
        """Only what ends within this block counts: before it is preparation, after it the stop of the broker.

        With ``since``, in seconds since the epoch, what has ended since then counts too.
        """
        self._since = since or time.time()
        yield
        self._until = time.time()

    def longest(self) -> tuple[float, str]:
        """Returns the CPU time in seconds and the description of the longest callback; 0 when none was long."""
        found = [(0.0, "")]
        for line in self._path.read_text().splitlines():
            ended, took, what = line.split(" ", 2)
            if self._since <= float(ended) <= self._until:
                found.append((float(took), what))
        return max(found)


@contextmanager
def noting() -> Iterator[Callbacks]:
    """Brokers that start in this block note their long callbacks."""
    before = dict(os.environ)
    with tempfile.TemporaryDirectory(prefix="skep-bench-") as directory:
        path = Path(directory, "callbacks")
        path.touch()
        os.environ["SKEP_BENCH_CALLBACKS"] = str(path)
        os.environ["PYTHONPATH"] = os.pathsep.join([str(HOOKS), *filter(None, [before.get("PYTHONPATH")])])
        try:
            yield Callbacks(path)
        finally:
            os.environ.clear()
            os.environ.update(before)
