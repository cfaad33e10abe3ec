"""The blocking half of ``ZooKeeperStore``: keys as nodes, and each operation as kazoo requests.

A key is a node with data. A node without data is not a key: it was created for a node below it, or its key was deleted
while others lay below. A version is ZooKeeper's plus one, because ZooKeeper counts from 0 and 0 means here that the key
does not exist.

Each read sends ``sync`` first: our server may be behind the one that accepted another client's write.
"""

import contextlib
import itertools
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from kazoo.exceptions import BadVersionError, KazooException, NodeExistsError, NoNodeError, NotEmptyError
from kazoo.handlers.threading import KazooTimeoutError

from skep.base.errors import StoreUnavailable, VersionConflict
from skep.metadata.metadata_store import MUST_NOT_EXIST, Put, Versioned, check_entries, check_entry
from skep.metadata.zookeeper.zookeeper_batch import ANY_VERSION, FIRST_VERSION, ZookeeperBatch
from skep.metadata.zookeeper.zookeeper_requests import AddWatch, MultiRead, event_path

FAILURES = (KazooException, KazooTimeoutError)

IN_FLIGHT = 200
"""Requests in flight at most. kazoo wakes its thread with one byte per request in a pipe, which must not fill."""

READS_PER_REQUEST = 50

MAX_VALUE_BYTES = 1_000_000
"""Just below the default of ``jute.maxbuffer``, with room for the key."""

LONGEST_WAIT_AMONG_MANY_S = 30.0
"""For one response of many, while the connection stands: a server that is busy with our requests is alive."""

ATTEMPTS = 10
"""Another client may create or delete a node between two of our requests, but not so often in a row."""


class ZooKeeperNodes:
    """The operations on one kazoo client, which the caller starts and stops. Thread-safe.

    Raises kazoo's exceptions, including its timeouts; ``ZooKeeperStore`` converts them.
    """

    def __init__(self, client: Any, root: str, timeout_s: float) -> None:
        self._client = client
        self._root = root
        self._timeout_s = timeout_s
        self._unconfirmed: set[str] = set()

    def prepare(self) -> None:
        """Creates the root node. kazoo's ``chroot`` is not used: one of several levels would have to exist already."""
        self._wait(self._client.ensure_path_async(self._root))

    def watch_all(self, on_change: Callable[[str], object]) -> None:
        """Calls ``on_change`` on kazoo's thread with each key that changes, until the connection is lost."""

        def read_event(buffer: bytes, offset: int) -> None:
            if key := event_path(buffer, offset)[len(self._root) + 1 :]:
                on_change(key)

        # Replaces kazoo's reader, which would look for a watch on the changed node itself.
        self._client._connection._read_watch_event = read_event
        self._wait(self._send(AddWatch(self._root)))

    def get(self, key: str) -> Versioned | None:
        path = self._path(key)
        self._client.sync_async(path)
        entry, _ = self._read(path)
        return entry

    def read_tree(self, prefix: str) -> dict[str, Versioned]:
        found: dict[str, Versioned] = {}
        self._client.sync_async(self._path(prefix))
        level = [prefix]
        while level:
            parents = []
            for key, (data, stat) in self._read_all(level, lambda paths: MultiRead(data_of=paths)):
                if data:
                    found[key] = Versioned(data, stat.version + 1)
                if stat.children_count:
                    parents.append(key)
            below = self._read_all(parents, lambda paths: MultiRead(children_of=paths))
            level = [f"{key}/{name}" if key else name for key, names in below for name in names]
        return found

    def _read_all(self, keys: list[str], request: Callable[[list[str]], MultiRead]) -> Iterator[tuple[str, Any]]:
        """Yields each key with its data or children, except keys that were deleted since their parent was read."""
        chunks = [keys[start : start + READS_PER_REQUEST] for start in range(0, len(keys), READS_PER_REQUEST)]
        requests = (self._send(request([self._path(key) for key in chunk])) for chunk in chunks)
        for chunk, response in zip(chunks, self._responses(requests), strict=True):
            for key, read in zip(chunk, _or_raise(response), strict=True):
                if not isinstance(read, NoNodeError):
                    yield key, _or_raise(read)

    def put(self, key: str, value: bytes, expected_version: int | None) -> int:
        check_entry(key, value)
        _check_size(key, value)
        if expected_version is None:
            return self._put_over_anything(key, value)
        if expected_version == MUST_NOT_EXIST:
            return self._put_new(key, value)
        try:
            return self._set(key, value, expected_version - 1)
        except (NoNodeError, BadVersionError):
            raise VersionConflict(f"{key} is no longer at version {expected_version}") from None

    def _put_over_anything(self, key: str, value: bytes) -> int:
        for _ in range(ATTEMPTS):
            try:
                return self._set(key, value, ANY_VERSION)
            except NoNodeError:
                with contextlib.suppress(NodeExistsError):
                    return self._create(key, value)
        raise _contention(key)

    def _put_new(self, key: str, value: bytes) -> int:
        for _ in range(ATTEMPTS):
            try:
                return self._create(key, value)
            except NodeExistsError:
                entry, stat = self._read(self._path(key))
            if entry is not None:
                raise VersionConflict(f"{key} already exists, at version {entry.version}")
            if stat is not None:
                with contextlib.suppress(BadVersionError, NoNodeError):
                    return self._set(key, value, stat.version)
        raise _contention(key)

    def put_many(self, entries: Sequence[Put], guard: tuple[str, int] | None) -> list[int | VersionConflict]:
        check_entries(entries)
        for entry in entries:
            _check_size(entry.key, entry.value)
        for parent in {entry.key.rpartition("/")[0] for entry in entries if not entry.expected_version}:
            self._wait(self._client.ensure_path_async(self._path(parent)))
        return ZookeeperBatch(self._client, self._path, self._responses, guard).put(entries)

    def put_ephemeral(self, key: str, value: bytes) -> tuple[int, int]:
        """Returns the new version, and the session that the key belongs to."""
        check_entry(key, value)
        _check_size(key, value)
        for _ in range(ATTEMPTS):
            # The session that had the key may end between our create and our look at its owner.
            with contextlib.suppress(NoNodeError):
                stat = self._create_ephemeral(key, value)
                self._unconfirmed.discard(key)
                return stat.version + 1, stat.owner_session_id
        raise _contention(key)

    def _create_ephemeral(self, key: str, value: bytes) -> Any:
        request = self._client.create_async(self._path(key), value, ephemeral=True, makepath=True, include_data=True)
        try:
            return self._wait(request)[1]
        except NodeExistsError:
            _, stat = self._wait(self._client.get_async(self._path(key)))
            # The response to an earlier attempt was lost with the connection, but the key that it created is ours.
            was_created_then = key in self._unconfirmed and stat.owner_session_id == self._session_id
            if not was_created_then:
                raise VersionConflict(f"{key} already exists, at version {stat.version + 1}") from None
            return self._wait(self._client.set_async(self._path(key), value, stat.version))
        except FAILURES:
            self._unconfirmed.add(key)
            raise

    def delete(self, key: str, expected_version: int | None, keeps_version: bool) -> bool:
        path = self._path(key)
        self._client.sync_async(path)
        for _ in range(ATTEMPTS):
            entry, _stat = self._read(path)
            found = MUST_NOT_EXIST if entry is None else entry.version
            if expected_version is not None and found != expected_version:
                raise VersionConflict(f"{key} is at version {found}, not {expected_version}")
            if entry is None:
                return False
            try:
                self._remove(path, entry.version - 1, keeps_version)
                return True
            except (BadVersionError, NoNodeError):
                continue
        raise _contention(key)

    def _remove(self, path: str, version: int, keeps_version: bool) -> None:
        """Deletes the node or empties it. An empty node is not a key, and keeps its version."""
        if not keeps_version:
            try:
                self._wait(self._client.delete_async(path, version))
                return
            except NotEmptyError:
                pass
        self._wait(self._client.set_async(path, b"", version))

    def _path(self, key: str) -> str:
        return f"{self._root}/{key}" if key else self._root

    @property
    def _session_id(self) -> int | None:
        identity = self._client.client_id
        return None if identity is None else int(identity[0])

    def _read(self, path: str) -> tuple[Versioned | None, Any]:
        """Returns the key if the node is one, and the node's stat if it exists."""
        try:
            data, stat = self._wait(self._client.get_async(path))
        except NoNodeError:
            return None, None
        return (Versioned(data, stat.version + 1) if data else None), stat

    def _set(self, key: str, value: bytes, version: int) -> int:
        return int(self._wait(self._client.set_async(self._path(key), value, version)).version) + 1

    def _create(self, key: str, value: bytes) -> int:
        self._wait(self._client.create_async(self._path(key), value, makepath=True))
        return FIRST_VERSION

    def _send(self, request: AddWatch | MultiRead) -> Any:
        response = self._client.handler.async_result()
        self._client._call(request, response)
        return response

    def _wait(self, request: Any) -> Any:
        return request.get(timeout=self._timeout_s)

    def _responses(self, requests: Iterable[Any]) -> Iterator[Any]:
        """Yields the result or the exception of each request, in order, with many requests in flight."""
        waiting: deque[Any] = deque()
        requests = iter(requests)
        while True:
            waiting.extend(itertools.islice(requests, IN_FLIGHT - len(waiting)))
            if not waiting:
                return
            try:
                yield self._wait_among_many(waiting.popleft())
            except FAILURES as error:
                yield error

    def _wait_among_many(self, request: Any) -> Any:
        give_up_at = time.monotonic() + LONGEST_WAIT_AMONG_MANY_S
        while True:
            try:
                return self._wait(request)
            except KazooTimeoutError:
                # kazoo fails the requests that it has when the connection breaks. One that is sent after that waits
                # for the next connection.
                if not self._client.connected or time.monotonic() >= give_up_at:
                    raise


def _contention(key: str) -> VersionConflict:
    return VersionConflict(f"{key} changed concurrently {ATTEMPTS} times; giving up")


def _check_size(key: str, value: bytes) -> None:
    # ZooKeeper would close the connection without saying why, at every retry.
    if len(value) > MAX_VALUE_BYTES:
        raise StoreUnavailable(f"{key} has {len(value)} bytes; a ZooKeeper node holds at most {MAX_VALUE_BYTES}")


def _or_raise(response: Any) -> Any:
    if isinstance(response, Exception):
        raise response
    return response
