"""The metadata store: a small tree of versioned values that all brokers of a cluster share.

The protocol is small enough for SQLite on one machine and ZooKeeper on several. A store holds keys and bytes;
``catalog.py`` defines topics, brokers and configs above it.

Keys are paths (``topics/orders``). Values are never empty, so that an engine that has to create ``topics`` before
``topics/orders`` can tell a key that was put from one that it created itself. No key lies below an ephemeral one.

Ephemeral keys belong to a session. The engine ends the session when its process dies, or when the process is silent for
longer than the session timeout: stopped, disconnected, or on a machine that hangs. A process that was only silent finds
its session ended (``wait_session_end``), and other sessions may have taken its keys.

Left out on purpose: transactions over several keys. ``put_many`` is many independent compare-and-sets in one call.
Callers order their writes so that a crash between two of them leaves a state that can be completed; see
``Catalog.delete_topic``.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from skep.base.errors import VersionConflict

MUST_NOT_EXIST = 0
MAX_PENDING_KEYS = 10_000
SESSION_TIMEOUT_S = 6.0


class Versioned(NamedTuple):
    """A value as it was read. ``version`` is above 0 and grows with each put."""

    value: bytes
    version: int


class Put(NamedTuple):
    """One entry of ``put_many``: the arguments of ``put``."""

    key: str
    value: bytes
    expected_version: int | None = None


@dataclass(frozen=True, slots=True)
class Changed:
    """Keys that were put or deleted. With ``missed`` there may be others: read the tree again.

    ``keys`` may include a parent that nobody put: some engines create it with the key.
    """

    keys: frozenset[str]
    missed: bool = False


class MetadataStore(Protocol):
    """A connection with the engine, and one session at a time on it.

    Every method except ``open`` needs an open store. Each raises StoreUnavailable, within seconds, if the engine cannot
    be reached or refuses. Whether a write that failed this way took place is unknown until the key is read again. The
    same holds for a write whose caller was cancelled.
    """

    async def open(self) -> None: ...

    async def close(self) -> None:
        """Ends the session: its ephemeral keys are deleted and its watches end. A second call does nothing."""
        ...

    async def wait_session_end(self) -> None:
        """Returns when the session of our ephemeral keys has ended without ``close``, and they are deleted.

        It then returns at once until the next ``put_ephemeral``, which begins a new session. Watches stay.
        """
        ...

    def end_session(self) -> None:
        """Ends the session at once, from any thread: for a process whose event loop hangs. The store stays open."""
        ...

    async def get(self, key: str) -> Versioned | None: ...

    async def put(self, key: str, value: bytes, *, expected_version: int | None = None) -> int:
        """Writes durably and returns the new version.

        ``expected_version`` makes it a compare-and-set: raises VersionConflict unless the key is at that version; 0
        means that it must not exist. After a delete, versions may restart. An ephemeral key stays ephemeral.
        """
        ...

    async def put_many(
        self, entries: Sequence[Put], *, guard: tuple[str, int] | None = None
    ) -> list[int | VersionConflict]:
        """Makes many puts, all of different keys. Returns the new version of each, or its conflict.

        With a guard, a key and its version, entries are written only while that key is at that version. If it is not,
        this raises Fenced and writes nothing more. Earlier entries may have been written, as after StoreUnavailable.
        """
        ...

    async def put_ephemeral(self, key: str, value: bytes) -> int:
        """Writes a key that is deleted when this session ends in any way. Raises VersionConflict if the key exists."""
        ...

    async def delete(self, key: str, *, expected_version: int | None = None, keeps_version: bool = False) -> bool:
        """Deletes a key durably. Returns whether it existed. Raises VersionConflict unless at ``expected_version``.

        With ``keeps_version`` versions continue when the key is put again. This is for names that are reused: a reader
        of the earlier value can never mistake the later one for it.
        """
        ...

    async def children(self, key: str) -> list[str]:
        """Returns the names directly below a key, sorted: ``["orders"]`` for ``topics`` with ``topics/orders``."""
        ...

    async def read_tree(self, prefix: str) -> dict[str, Versioned]:
        """Returns the key ``prefix`` and all keys below it; ``""`` reads everything. Made for start-up."""
        ...

    async def watch(self, prefix: str) -> "Watch":
        """Reports changes of ``prefix`` and below, by any session and our own, from the return of this call on.

        A watch survives the loss of the connection and of the session. When the engine is reached again, it reports
        ``missed``, because changes may have been lost.
        """
        ...


class Watch:
    """An async iterator over the keys that changed under one prefix. A store fills it on the event loop.

    Between calls ``_pending`` holds the keys that were reported and not taken yet. Several changes of a key are one
    entry, so a slow reader sees the latest state and never an unbounded queue.
    """

    def __init__(self, prefix: str, on_close: Callable[[], None]) -> None:
        self.prefix = prefix
        self.closed = False
        self._on_close = on_close
        self._pending: set[str] = set()
        self._missed = False
        self._news = asyncio.Event()

    def report(self, changed: Changed) -> None:
        """Adds the keys under the prefix. The store calls this."""
        keys = [key for key in changed.keys if is_under(self.prefix, key)]
        self._missed |= changed.missed
        self._pending.update(keys)
        if len(self._pending) > MAX_PENDING_KEYS:
            self._pending.clear()
            self._missed = True
        if keys or changed.missed:
            self._news.set()

    def close(self) -> None:
        """Ends the iteration, also one that is waiting."""
        self.closed = True
        self._news.set()
        self._on_close()

    def __aiter__(self) -> "Watch":
        return self

    async def __anext__(self) -> Changed:
        await self._news.wait()
        if self.closed:
            raise StopAsyncIteration
        return self.take()

    def take(self) -> Changed:
        """Returns what was reported since the last call, which may be nothing."""
        changed = Changed(frozenset(self._pending), self._missed)
        self._pending.clear()
        self._missed = False
        if not self.closed:
            self._news.clear()
        return changed


def is_under(prefix: str, key: str) -> bool:
    return prefix in ("", key) or key.startswith(prefix + "/")


def check_entry(key: str, value: bytes) -> None:
    """Raises ValueError for what some store could not keep. Not a KafkaError: our code makes keys, not clients."""
    if not all(part and part not in (".", "..") for part in key.split("/")) or "\0" in key:
        raise ValueError(f"invalid key {key!r}")
    if not value:
        raise ValueError(f"empty value for {key}")


def check_entries(entries: Sequence[Put]) -> None:
    """Raises ValueError for entries that ``put_many`` refuses before it writes anything."""
    for entry in entries:
        check_entry(entry.key, entry.value)
    if len({entry.key for entry in entries}) != len(entries):
        raise ValueError("the entries have a key twice")
