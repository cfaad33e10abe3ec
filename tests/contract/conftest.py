"""The engines that the contract of ``MetadataStore`` is checked on; a new store is one more class here."""

import asyncio
import contextlib
import functools
import itertools
import os
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

import skep
from skep.metadata.metadata_store import MetadataStore, Watch
from skep.metadata.sqlite.sqlite_store import SqliteStore
from skep.metadata.zookeeper.zookeeper_store import ZooKeeperStore
from skep.zookeeper_server import ZooKeeperServer

SOURCE = Path(skep.__file__).parent.parent
TIMEOUT_S = 300
SHORT_SESSION_S = 5.0
"""For a session that a test wants to end, but not before: a busy machine may not run a process for seconds."""

LONG_SESSION_S = 30.0


def in_event_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        asyncio.run(asyncio.wait_for(test(*args, **kwargs), TIMEOUT_S))

    return run


async def seen(watch: Watch, keys: set[str]) -> None:
    """Wait until the watch has reported all of ``keys``."""
    missing = set(keys)
    while missing:
        missing -= (await anext(watch)).keys


async def vanished(store: MetadataStore, watch: Watch, key: str) -> None:
    """Wait until a key is gone, looking when the watch reports something."""
    while await store.get(key) is not None:
        await anext(watch)


async def told(child: "subprocess.Popen[str]") -> str:
    """The next line that a process of an engine prints."""
    assert child.stdout is not None
    return (await asyncio.to_thread(child.stdout.readline)).strip()


class Engine:
    """Sessions with one engine, in this process and in others."""

    imports = ""

    def store(self, session_timeout_s: float) -> MetadataStore:
        raise NotImplementedError

    def expression(self, session_timeout_s: float) -> str:
        """Python that makes what ``store`` makes."""
        raise NotImplementedError

    @contextlib.asynccontextmanager
    async def session(self, session_timeout_s: float = LONG_SESSION_S) -> AsyncIterator[MetadataStore]:
        store = self.store(session_timeout_s)
        await store.open()
        try:
            yield store
        finally:
            await store.close()

    @contextlib.contextmanager
    def process(self, work: str, session_timeout_s: float = SHORT_SESSION_S) -> Iterator[subprocess.Popen[str]]:
        """A second process that runs ``work`` with an open ``store``; killed at the end if it still runs."""
        script = "\n".join(
            [
                "import asyncio",
                "from pathlib import Path",
                "from skep.base.errors import VersionConflict",
                self.imports,
                "async def main():",
                f"    store = {self.expression(session_timeout_s)}",
                "    await store.open()",
                textwrap.indent(textwrap.dedent(work), "    "),
                "asyncio.run(main())",
            ]
        )
        environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
        child = subprocess.Popen(
            [sys.executable, "-u", "-c", script],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        try:
            yield child
        finally:
            child.kill()
            child.communicate()


class SqliteEngine(Engine):
    """Sessions on one file."""

    imports = "from skep.metadata.sqlite.sqlite_store import SqliteStore"

    def __init__(self, path: Path) -> None:
        self._path = path

    def store(self, session_timeout_s: float) -> MetadataStore:
        return SqliteStore(self._path, session_timeout_s=session_timeout_s)

    def expression(self, session_timeout_s: float) -> str:
        return f"SqliteStore(Path({str(self._path)!r}), session_timeout_s={session_timeout_s})"


class ZooKeeperEngine(Engine):
    """Sessions with a real server, below a node of their own."""

    imports = "from skep.metadata.zookeeper.zookeeper_store import ZooKeeperStore"

    def __init__(self, address: str) -> None:
        self._address = address

    def store(self, session_timeout_s: float) -> MetadataStore:
        return ZooKeeperStore(self._address, session_timeout_s=session_timeout_s)

    def expression(self, session_timeout_s: float) -> str:
        return f"ZooKeeperStore({self._address!r}, session_timeout_s={session_timeout_s})"


@pytest.fixture(scope="session")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperServer]:
    """One server for all tests that leave it running."""
    with ZooKeeperServer(tmp_path_factory.mktemp("zookeeper")) as server:
        yield server


_numbers = itertools.count()


@pytest.fixture
def zookeeper_engine(zookeeper: ZooKeeperServer) -> ZooKeeperEngine:
    return ZooKeeperEngine(f"{zookeeper.connect}/clusters/{next(_numbers)}")


@pytest.fixture
def sqlite_engine(tmp_path: Path) -> SqliteEngine:
    return SqliteEngine(tmp_path / "metadata.db")


@pytest.fixture(params=["sqlite", "zookeeper"])
def engine(request: pytest.FixtureRequest) -> Engine:
    made: Engine = request.getfixturevalue(f"{request.param}_engine")
    return made
