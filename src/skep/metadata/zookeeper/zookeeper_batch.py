"""Many guarded puts on ZooKeeper, in few ``multi`` requests.

ZooKeeper executes a ``multi`` completely or not at all, but each entry must be a compare-and-set of its own. So entries
are sent by the hundred after one check of the guard, with many requests in flight. If one entry of a hundred has a
conflict, ZooKeeper has executed none of them, and they are sent again one by one, each after a check of the guard.

10,000 entries of which 3 lose: 100 requests, then at most 300.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from kazoo.exceptions import BadVersionError, KazooException, NodeExistsError, NoNodeError, RolledBackError

from skep.base.errors import Fenced, VersionConflict
from skep.metadata.metadata_store import MUST_NOT_EXIST, Put

ENTRIES_PER_REQUEST = 100
BYTES_PER_REQUEST = 256 * 1024
"""ZooKeeper closes a connection that sends more than ``jute.maxbuffer``, 1 MB, in one request."""

ANY_VERSION = -1
FIRST_VERSION = 1

Responses = Callable[[Iterable[Any]], Iterator[Any]]
"""Sends requests, some ahead of the responses, and yields a result or an exception for each."""


class ZookeeperBatch:
    """One ``put_many``. The parents of new keys exist."""

    def __init__(
        self, client: Any, path: Callable[[str], str], responses: Responses, guard: tuple[str, int] | None
    ) -> None:
        self._client = client
        self._path = path
        self._responses = responses
        self._guard = guard

    def put(self, entries: Sequence[Put]) -> list[int | VersionConflict]:
        results: dict[str, int | VersionConflict] = {}
        again: list[Put] = []
        for chunk, outcome in self._send(list(_chunks(entries))):
            if isinstance(outcome, KazooException):
                again += chunk
            else:
                results |= {entry.key: _version(made) for entry, made in zip(chunk, outcome, strict=True)}
        for (entry,), outcome in self._send([[entry] for entry in again]):
            if not isinstance(outcome, KazooException):
                results[entry.key] = _version(outcome[0])
            else:
                results[entry.key] = self._put_slowly(entry, outcome)
        return [results[entry.key] for entry in entries]

    def _send(self, chunks: list[list[Put]]) -> Iterator[tuple[list[Put], Any]]:
        """Yields each chunk with its results, or with the exception of the entry that made it fail."""
        for chunk, response in zip(chunks, self._responses(map(self._commit, chunks)), strict=True):
            yield chunk, self._outcome(response)

    def _commit(self, chunk: list[Put]) -> Any:
        request = self._client.transaction()
        if self._guard is not None:
            request.check(self._path(self._guard[0]), self._guard[1] - 1)
        for key, value, expected_version in chunk:
            if expected_version == MUST_NOT_EXIST:
                request.create(self._path(key), value)
            else:
                request.set_data(
                    self._path(key), value, ANY_VERSION if expected_version is None else expected_version - 1
                )
        return request.commit_async()

    def _outcome(self, response: Any) -> Any:
        if isinstance(response, Exception):
            raise response
        failed = next((made for made in response if _is_failure(made)), None)
        if self._guard is None:
            return failed or response
        if failed is not None and failed is response[0]:
            raise Fenced(f"{self._guard[0]} is no longer at version {self._guard[1]}")
        return failed or response[1:]

    def _put_slowly(self, entry: Put, failure: KazooException) -> int | VersionConflict:
        """Handles an existing node without data, which is no key, and a missing node that may be created."""
        key, value, expected_version = entry
        if expected_version is None and isinstance(failure, NoNodeError):
            return self._put_one(Put(key, value, MUST_NOT_EXIST), entry)
        if expected_version == MUST_NOT_EXIST and isinstance(failure, NodeExistsError):
            (node,) = self._responses([self._client.get_async(self._path(key))])
            if not isinstance(node, Exception) and not node[0]:
                return self._put_one(Put(key, value, node[1].version + 1), entry)
        if isinstance(failure, BadVersionError | NoNodeError | NodeExistsError):
            return VersionConflict(f"{key} is not at version {expected_version}")
        raise failure

    def _put_one(self, attempt: Put, entry: Put) -> int | VersionConflict:
        ((_, outcome),) = self._send([[attempt]])
        if isinstance(outcome, BadVersionError | NoNodeError | NodeExistsError):
            return VersionConflict(f"{entry.key} is not at version {entry.expected_version}")
        if isinstance(outcome, KazooException):
            raise outcome
        return _version(outcome[0])


def _chunks(entries: Sequence[Put]) -> Iterator[list[Put]]:
    chunk: list[Put] = []
    size = 0
    for entry in entries:
        size += len(entry.key) + len(entry.value)
        if chunk and (len(chunk) == ENTRIES_PER_REQUEST or size > BYTES_PER_REQUEST):
            yield chunk
            chunk, size = [], len(entry.key) + len(entry.value)
        chunk.append(entry)
    if chunk:
        yield chunk


def _is_failure(made: Any) -> bool:
    """Returns whether this operation made a ``multi`` fail. Those before it are reported as rolled back."""
    return isinstance(made, KazooException) and not isinstance(made, RolledBackError)


def _version(made: Any) -> int:
    """Returns the version after one operation. ZooKeeper returns a stat for a set, the path for a create."""
    return FIRST_VERSION if isinstance(made, str) else int(made.version) + 1
