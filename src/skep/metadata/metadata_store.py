"""The metadata store: a small tree of versioned values that every broker of a cluster sees alike.

Small enough to be SQLite on one machine and ZooKeeper beyond it. What topics, brokers and configs are is decided
above, in ``catalog.py``; a store knows keys and bytes.

Keys are paths (``topics/orders``). Values are never empty, so that an engine that has to make ``topics`` before
``topics/orders`` can tell a key that somebody put from one it made itself. No key lies below an ephemeral one.

Ephemeral keys belong to a session, which the engine ends when its process dies, or stays silent for longer than the
session timeout: stopped, cut off, or on a machine that hangs. One that was only silent finds its session ended
(``wait_session_end``) and its keys perhaps taken by others.

Left out on purpose: transactions over several keys. ``put_many`` is many compare-and-sets in one go, each for itself.
Callers order their writes so that a stop between two of them leaves something that can be finished; see
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
    """One entry of ``put_many``: what ``put`` takes."""

    key: str
    value: bytes
    expected_version: int | None = None


@dataclass(frozen=True, slots=True)
class Changed:
    """Keys that were put or deleted. With ``missed``, others may have been too: read the tree again.

    A parent of such a key may be named with it, though nobody put it: some engines make it then.
    """

    keys: frozenset[str]
    missed: bool = False


class MetadataStore(Protocol):
    """A connection with the engine, and on it one session at a time.

    Every method but ``open`` needs an open store. Each raises StoreUnavailable, within seconds, when the engine cannot
    be reached or refuses; whether a write that failed so took place is then unknown until it is read again. The same
    holds for a write whose caller was cancelled.
    """

    async def open(self) -> None: ...

    async def close(self) -> None:
        """End the session: its ephemeral keys vanish, its watches end. A second call does nothing."""
        ...

    async def wait_session_end(self) -> None:
        """Return when the session that put our ephemeral keys is over and they are gone, though nobody closed us.

        It then returns at once until the next ``put_ephemeral``, which begins a new session. Watches live on.
        """
        ...

    def end_session(self) -> None:
        """End the session at once, from any thread: for a process whose event loop hangs. The store stays open."""
        ...

    async def get(self, key: str) -> Versioned | None: ...

    async def put(self, key: str, value: bytes, *, expected_version: int | None = None) -> int:
        """Write durably and return the new version.

        ``expected_version`` makes it a compare-and-set: VersionConflict unless the key is at that version, 0 meaning
        that it must not exist. After a delete, versions may begin anew. An ephemeral key stays ephemeral.
        """
        ...

    async def put_many(
        self, entries: Sequence[Put], *, guard: tuple[str, int] | None = None
    ) -> list[int | VersionConflict]:
        """Make many puts in one go; for each the new version, or the conflict it lost to. The keys all differ.

        With a guard, a key and its version, an entry is written only while that key is at that version; when it is
        not, Fenced is raised and nothing more is written. Entries before may have been, as after StoreUnavailable.
        """
        ...

    async def put_ephemeral(self, key: str, value: bytes) -> int:
        """Write a key that vanishes with this session, however it ends. VersionConflict when the key exists."""
        ...

    async def delete(self, key: str, *, expected_version: int | None = None, keeps_version: bool = False) -> bool:
        """Remove a key durably; whether it was there. VersionConflict unless it is at ``expected_version``.

        With ``keeps_version`` versions go on where they were when the key is put again: for names that are used again,
        so that who saw the earlier value can never take the later one for it.
        """
        ...

    async def children(self, key: str) -> list[str]:
        """The names directly below a key, sorted: ``["orders"]`` for ``topics`` when there is ``topics/orders``."""
        ...

    async def read_tree(self, prefix: str) -> dict[str, Versioned]:
        """The key ``prefix`` and all keys below it; ``""`` reads everything. One call, made for start-up."""
        ...

    async def watch(self, prefix: str) -> "Watch":
        """Report changes of ``prefix`` and below, by any session and our own, from the return of this call on.

        A watch outlives the loss of the connection and of the session; what may have passed it by meanwhile is
        reported as ``missed`` when the engine is reached again.
        """
        ...


class Watch:
    """The keys that changed under one prefix, as an async iterator; filled by a store on the event loop.

    Between calls ``_pending`` holds what was reported and not yet taken. Several changes of a key are one entry, so a
    reader that is slow sees the latest state and never a queue without end.
    """

    def __init__(self, prefix: str, on_close: Callable[[], None]) -> None:
        self.prefix = prefix
        self.closed = False
        self._on_close = on_close
        self._pending: set[str] = set()
        self._missed = False
        self._news = asyncio.Event()

    def report(self, changed: Changed) -> None:
        """Take what lies under the prefix; called by the store."""
        keys = [key for key in changed.keys if is_under(self.prefix, key)]
        self._missed |= changed.missed
        self._pending.update(keys)
        if len(self._pending) > MAX_PENDING_KEYS:
            self._pending.clear()
            self._missed = True
        if keys or changed.missed:
            self._news.set()

    def close(self) -> None:
        """End the iteration, also one that is waiting."""
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
        """What was reported since the last time, be it nothing."""
        changed = Changed(frozenset(self._pending), self._missed)
        self._pending.clear()
        self._missed = False
        if not self.closed:
            self._news.clear()
        return changed


def is_under(prefix: str, key: str) -> bool:
    return prefix in ("", key) or key.startswith(prefix + "/")


def check_entry(key: str, value: bytes) -> None:
    """Every store refuses what another could not keep. A ValueError: keys are made by our code, not by clients."""
    if not all(part and part not in (".", "..") for part in key.split("/")) or "\0" in key:
        raise ValueError(f"not a key: {key!r}")
    if not value:
        raise ValueError(f"empty value for {key}")


def check_entries(entries: Sequence[Put]) -> None:
    """What ``put_many`` refuses before it writes anything."""
    for entry in entries:
        check_entry(entry.key, entry.value)
    if len({entry.key for entry in entries}) != len(entries):
        raise ValueError("a key twice among the entries to put")
