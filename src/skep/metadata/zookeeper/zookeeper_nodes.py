"""The blocking half of ``ZooKeeperStore``: keys as nodes, and each operation as requests of kazoo's.

A key is a node with data. A node without data is none: it was made on the way to one below it, or the key that it was
has been deleted while others lay below. A version is ZooKeeper's plus one, as ZooKeeper counts from 0 and 0 means here
that there is no key.

Reads are preceded by ``sync``: the server we talk to may be behind the one that took another's write.
"""

import contextlib
import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from kazoo.exceptions import BadVersionError, KazooException, NodeExistsError, NoNodeError, NotEmptyError
from kazoo.handlers.threading import KazooTimeoutError

from skep.base.errors import StoreUnavailable, VersionConflict
from skep.metadata.metadata_store import MUST_NOT_EXIST, Put, Versioned, check_entries, check_entry
from skep.metadata.zookeeper.zookeeper_batch import ANY_VERSION, FIRST_VERSION, Batch
from skep.metadata.zookeeper.zookeeper_requests import AddWatch, MultiRead, event_path

FAILURES = (KazooException, KazooTimeoutError)

IN_FLIGHT = 200
"""Requests sent ahead of their answers. kazoo wakes its thread by a byte per request, in a pipe that must not fill."""

READS_PER_REQUEST = 50

MAX_VALUE_BYTES = 1_000_000
"""Just below ``jute.maxbuffer`` as ZooKeeper comes, with room for the key."""

LONGEST_WAIT_AMONG_MANY_S = 30.0
"""A server that is gone ends a wait sooner, for kazoo finds out by its pings; one that is busy with us is not gone."""

ATTEMPTS = 10
"""Between two requests of ours a node may be made or go; so often in a row it does not."""


class ZooKeeperNodes:
    """The operations on one kazoo client that somebody else starts and stops. For any number of threads.

    Raises kazoo's exceptions as they come, its time-outs among them; the async half says what they mean.
    """

    def __init__(self, client: Any, root: str, timeout_s: float) -> None:
        self._client = client
        self._root = root
        self._timeout_s = timeout_s
        self._doubtful: set[str] = set()

    def prepare(self) -> None:
        """Make the root. Ours, not kazoo's ``chroot``, which has to be there already when it is more than one deep."""
        self._wait(self._client.ensure_path_async(self._root))

    def watch_all(self, on_change: Callable[[str], object]) -> None:
        """Have ``on_change`` called, on kazoo's thread, with each key that changes, until the connection is lost."""

        def read_event(buffer: bytes, offset: int) -> None:
            if key := event_path(buffer, offset)[len(self._root) + 1 :]:
                on_change(key)

        # In kazoo's place, which would look for a watch on the very node that changed.
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
        """Each key with what was read of it, without those that went after their parent told us of them."""
        chunks = [keys[start : start + READS_PER_REQUEST] for start in range(0, len(keys), READS_PER_REQUEST)]
        requests = (self._send(request([self._path(key) for key in chunk])) for chunk in chunks)
        for chunk, answer in zip(chunks, self._answers(requests), strict=True):
            for key, read in zip(chunk, _or_raise(answer), strict=True):
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
        raise _restless(key)

    def _put_new(self, key: str, value: bytes) -> int:
        for _ in range(ATTEMPTS):
            try:
                return self._create(key, value)
            except NodeExistsError:
                entry, stat = self._read(self._path(key))
            if entry is not None:
                raise VersionConflict(f"{key} is there already, at version {entry.version}")
            if stat is not None:
                with contextlib.suppress(BadVersionError, NoNodeError):
                    return self._set(key, value, stat.version)
        raise _restless(key)

    def put_many(self, entries: Sequence[Put], guard: tuple[str, int] | None) -> list[int | VersionConflict]:
        check_entries(entries)
        for entry in entries:
            _check_size(entry.key, entry.value)
        for parent in {entry.key.rpartition("/")[0] for entry in entries if not entry.expected_version}:
            self._wait(self._client.ensure_path_async(self._path(parent)))
        return Batch(self._client, self._path, self._answers, guard).put(entries)

    def put_ephemeral(self, key: str, value: bytes) -> tuple[int, int]:
        """The new version, and the session that the key belongs to."""
        check_entry(key, value)
        _check_size(key, value)
        for _ in range(ATTEMPTS):
            # The session of whoever had the key may end between the try to make it and the look at who has it.
            with contextlib.suppress(NoNodeError):
                stat = self._create_ephemeral(key, value)
                self._doubtful.discard(key)
                return stat.version + 1, stat.owner_session_id
        raise _restless(key)

    def _create_ephemeral(self, key: str, value: bytes) -> Any:
        request = self._client.create_async(self._path(key), value, ephemeral=True, makepath=True, include_data=True)
        try:
            return self._wait(request)[1]
        except NodeExistsError:
            _, stat = self._wait(self._client.get_async(self._path(key)))
            # The answer to an earlier try was lost with the connection; the key that it made is ours all the same.
            was_made_then = key in self._doubtful and stat.owner_session_id == self._session_id
            if not was_made_then:
                raise VersionConflict(f"{key} is there already, at version {stat.version + 1}") from None
            return self._wait(self._client.set_async(self._path(key), value, stat.version))
        except FAILURES:
            self._doubtful.add(key)
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
        raise _restless(key)

    def _remove(self, path: str, version: int, keeps_version: bool) -> None:
        """An empty node is no key, and keeps the version of the one that it was."""
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
        """The key, if the node is one, and the node's state, if there is one."""
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
        answer = self._client.handler.async_result()
        self._client._call(request, answer)
        return answer

    def _wait(self, request: Any) -> Any:
        return request.get(timeout=self._timeout_s)

    def _answers(self, requests: Iterable[Any]) -> Iterator[Any]:
        """What came of each request, or the exception, in order; many requests are under way at a time."""
        waiting: deque[Any] = deque()
        requests = iter(requests)
        while True:
            waiting.extend(itertools.islice(requests, IN_FLIGHT - len(waiting)))
            if not waiting:
                return
            try:
                yield waiting.popleft().get(timeout=LONGEST_WAIT_AMONG_MANY_S)
            except FAILURES as error:
                yield error


def _restless(key: str) -> VersionConflict:
    return VersionConflict(f"{key} came and went under our hands {ATTEMPTS} times in a row")


def _check_size(key: str, value: bytes) -> None:
    # ZooKeeper would drop the connection, again and again, without a word on why.
    if len(value) > MAX_VALUE_BYTES:
        raise StoreUnavailable(f"{key} has {len(value)} bytes, ZooKeeper keeps at most {MAX_VALUE_BYTES} of one node")


def _or_raise(answer: Any) -> Any:
    if isinstance(answer, Exception):
        raise answer
    return answer
