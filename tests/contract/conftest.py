"""The engines that the contract of ``MetadataStore`` is checked on; a new store is one more class here."""

import contextlib
import os
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

import skep
from skep.metadata.sqlite import SqliteStore
from skep.metadata.store import MetadataStore

SOURCE = Path(skep.__file__).parent.parent


class SqliteEngine:
    """Sessions on one file."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / "metadata.db"
        self.make_store = (
            f"from skep.metadata.sqlite import SqliteStore; store = SqliteStore(Path({str(self._path)!r}))"
        )

    @contextlib.asynccontextmanager
    async def session(self) -> AsyncIterator[MetadataStore]:
        store = SqliteStore(self._path)
        await store.open()
        try:
            yield store
        finally:
            await store.close()

    @contextlib.contextmanager
    def process(self, work: str) -> Iterator[subprocess.Popen[str]]:
        """A second process that runs ``work`` with an open ``store``; killed at the end if it still runs."""
        script = "\n".join(
            [
                "import asyncio",
                "from pathlib import Path",
                "from skep.base.errors import VersionConflict",
                self.make_store,
                "async def main():",
                "    await store.open()",
                textwrap.indent(textwrap.dedent(work), "    "),
                "asyncio.run(main())",
            ]
        )
        environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
        child = subprocess.Popen(
            [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        try:
            yield child
        finally:
            child.kill()
            child.communicate()


@pytest.fixture(params=[SqliteEngine])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> SqliteEngine:
    made: SqliteEngine = request.param(tmp_path)
    return made
