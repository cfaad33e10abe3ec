"""A broker in this process whose system calls can be made to fail, for what no kernel does when it is asked."""

import asyncio
import contextlib
import errno
import os
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import uvloop

from skep.app import Broker
from skep.base.files import os_file, os_files
from tests.waiting import PATIENCE_S


class FaultyOs:
    """Stands for the module ``os`` where files are read and written, and fails calls on paths that contain a word.

    ``fail("fdatasync", "orders-0", errno.EIO)`` until ``heal``; all other calls are the real ones.
    """

    def __init__(self) -> None:
        self._faults: dict[str, tuple[str, int]] = {}
        self.failed = 0

    def fail(self, call: str, word: str, error: int = errno.EIO) -> None:
        self._faults[call] = (word, error)

    def heal(self) -> None:
        self._faults.clear()

    def _check(self, call: str, path: str) -> None:
        word, error = self._faults.get(call, (None, 0))
        if word is not None and word in path:
            self.failed += 1
            raise OSError(error, os.strerror(error), path)

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def fdatasync(self, descriptor: int) -> None:
        self._check("fdatasync", _path_of(descriptor))
        os.fdatasync(descriptor)

    def fsync(self, descriptor: int) -> None:
        self._check("fsync", _path_of(descriptor))
        os.fsync(descriptor)

    def pwritev(self, descriptor: int, buffers: Sequence[Any], offset: int) -> int:
        path = _path_of(descriptor)
        if self._faults.get("short write", ("\0", 0))[0] in path:
            self.failed += 1
            return os.pwrite(descriptor, b"".join(buffers)[:20], offset)
        self._check("pwritev", path)
        return os.pwritev(descriptor, buffers, offset)

    def pread(self, descriptor: int, size: int, position: int) -> bytes:
        self._check("pread", _path_of(descriptor))
        return os.pread(descriptor, size, position)

    def open(self, path: str, flags: int, mode: int = 0o777) -> int:
        if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            self._check("open to write", path)
        return os.open(path, flags, mode)


def _path_of(descriptor: int) -> str:
    return os.readlink(f"/proc/self/fd/{descriptor}")


class FaultyBroker:
    """``os`` is where to make calls fail; ``bootstrap_servers`` where to connect to; ``pid`` is our own."""

    def __init__(self, broker: Broker, faults: FaultyOs) -> None:
        self.os = faults
        self.pid = os.getpid()
        self.bootstrap_servers = f"{broker.node.host}:{broker.node.port}"


@contextlib.contextmanager
def faulty_broker(data_dir: Path, monkeypatch: pytest.MonkeyPatch, **options: str) -> Iterator[FaultyBroker]:
    """Runs it in a thread with an event loop of its own, and stops it cleanly."""
    faults = FaultyOs()
    for module in (os_file, os_files):
        monkeypatch.setattr(module, "os", faults)
    texts = {name.replace("_", "."): text for name, text in options.items()}
    broker = Broker({"listeners": "127.0.0.1:0", "log.dirs": str(data_dir), **texts})
    started, stopping = threading.Event(), asyncio.Event()
    loop = uvloop.new_event_loop()
    trouble: list[BaseException] = []

    async def live() -> None:
        await broker.start()
        started.set()
        await stopping.wait()
        await broker.stop()

    def run() -> None:
        try:
            loop.run_until_complete(live())
        except BaseException as error:
            trouble.append(error)
        finally:
            started.set()
            loop.close()

    thread = threading.Thread(target=run, name="faulty broker", daemon=True)
    thread.start()
    assert started.wait(PATIENCE_S)
    assert not trouble, trouble
    try:
        yield FaultyBroker(broker, faults)
    finally:
        faults.heal()
        loop.call_soon_threadsafe(stopping.set)
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
        assert not trouble, trouble
