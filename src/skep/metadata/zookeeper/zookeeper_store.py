"""A metadata store in ZooKeeper, for brokers on several machines, through kazoo.

The session is ZooKeeper's. kazoo reconnects itself, to any server of the ensemble, and begins a new session when the
old one has expired. The loss of a connection matters only to watches, which may have missed changes. The loss of a
session deletes our ephemeral keys (``wait_session_end``).

Without a connection a call waits for one, and fails after the session timeout or 5 s, whichever is less. A call that
was in flight when the connection broke fails at once; whether it took place is unknown.

kazoo's calls run on a few threads of the store, so the event loop never waits for the network. The requests to
ZooKeeper are in ``zookeeper_nodes.py``.
"""

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from kazoo.client import KazooClient
from kazoo.exceptions import (
    AuthFailedError,
    ConnectionClosedError,
    ConnectionLoss,
    NoAuthError,
    OperationTimeoutError,
    SessionExpiredError,
    UnimplementedError,
)
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.protocol.states import KazooState, KeeperState
from kazoo.retry import KazooRetry

from skep.base.errors import StoreUnavailable, VersionConflict
from skep.base.loop.supervisor import Supervisor
from skep.metadata.metadata_store import SESSION_TIMEOUT_S, Changed, Put, Versioned, Watch
from skep.metadata.zookeeper.zookeeper_address import ZooKeeperAddress
from skep.metadata.zookeeper.zookeeper_nodes import FAILURES, ZooKeeperNodes
from skep.metadata.zookeeper.zookeeper_requests import wait_for_sockets

logger = logging.getLogger(__name__)

CONNECTION_TIMEOUT_S = 18.0
LONGEST_CALL_S = 5.0
SHORTEST_RETRY_PAUSE_S = 0.05
LONGEST_RETRY_PAUSE_S = 1.0
SAY_SO_AFTER_S = 1.0
THREADS = 8

LOST = (ConnectionClosedError, ConnectionLoss, KazooTimeoutError, OperationTimeoutError, SessionExpiredError)
"""The connection ended, or a response did not arrive in time. A retry may succeed."""

R = TypeVar("R")


class ZooKeeperStore:
    """A ``MetadataStore``. Owns the threads and the client.

    Between calls ``_connected`` is set while kazoo has a connection, as far as the loop knows. kazoo reports its state
    on a thread of its own. The reports are passed to the loop in order, and all state here changes on the loop.
    """

    def __init__(
        self,
        address: str,
        *,
        session_timeout_s: float = SESSION_TIMEOUT_S,
        connection_timeout_s: float = CONNECTION_TIMEOUT_S,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        """``options`` are passed to ``KazooClient``: auth_data, sasl_options, use_ssl, certfile, keyfile, ca ..."""
        self.address = ZooKeeperAddress.parse(address)
        self._disconnected_at = float("-inf")
        self._session_timeout_s = session_timeout_s
        self._connection_timeout_s = connection_timeout_s
        self._options = dict(options or {})
        self._loop: asyncio.AbstractEventLoop  # from open on
        self._client: Any = None
        self._nodes: ZooKeeperNodes  # from open to close
        self._threads: ThreadPoolExecutor | None = None
        self._watches: list[Watch] = []
        self._changed_keys: deque[str] = deque()
        self._connected = asyncio.Event()
        self._was_connected = False
        self._is_starting = True
        self._session_ended = asyncio.Event()
        self._session: int | None = None
        self._lost_session: int | None = None
        self._tasks = Supervisor()

    async def open(self) -> None:
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="metadata")
        try:
            self._client = self._new_client()
            self._nodes = ZooKeeperNodes(self._client, self.address.chroot, self._call_timeout_s)
            await self._on_thread(self._client.start_async)
            await self._first_connection()
            await self._call(self._nodes.prepare)
            await self._call(self._watch_all)
        except BaseException:
            await self.close()
            raise

    def _new_client(self) -> Any:
        self._loop = asyncio.get_running_loop()
        quiet = logging.getLogger(f"{__name__}.kazoo")
        quiet.setLevel(logging.ERROR)  # kazoo logs every connection and failed attempt; we log changes once
        client = KazooClient(
            hosts=",".join(self.address.hosts),
            timeout=self._session_timeout_s,
            connection_retry=KazooRetry(max_tries=-1, delay=SHORTEST_RETRY_PAUSE_S, max_delay=LONGEST_RETRY_PAUSE_S),
            logger=quiet,
            **self._options,
        )
        client.handler.select = wait_for_sockets

        def pass_on(state: str) -> None:
            # At a loss the client still has the id of the session that it is about to drop.
            self._loop.call_soon_threadsafe(self._state_changed, state, client._session_id)

        client.add_listener(pass_on)
        return client

    @property
    def _call_timeout_s(self) -> float:
        return min(self._session_timeout_s, LONGEST_CALL_S)

    async def _first_connection(self) -> None:
        try:
            async with asyncio.timeout(self._connection_timeout_s):
                try:
                    async with asyncio.timeout(SAY_SO_AFTER_S):
                        await self._connected.wait()
                except TimeoutError:
                    logger.warning(
                        "%s does not respond yet; trying for %.0f s", self.address, self._connection_timeout_s
                    )
                    await self._connected.wait()
        except TimeoutError:
            raise StoreUnavailable(
                f"{self.address} did not respond within {self._connection_timeout_s:.0f} s"
                " (zookeeper.connection.timeout.ms)"
            ) from None

    async def close(self) -> None:
        if self._threads is None:
            return
        threads, self._threads = self._threads, None
        for watch in self._watches:
            watch.close()
        self._watches.clear()
        await self._tasks.close()
        try:
            if self._client is not None:
                await asyncio.get_running_loop().run_in_executor(threads, self._stop_client)
        finally:
            threads.shutdown(wait=False)

    def _stop_client(self) -> None:
        # During an attempt to connect it may not stop in time. Its threads do not keep the process alive.
        with contextlib.suppress(OSError, *FAILURES):
            self._client.stop()
            self._client.close()

    async def get(self, key: str) -> Versioned | None:
        return await self._call(lambda: self._nodes.get(key))

    async def put(self, key: str, value: bytes, *, expected_version: int | None = None) -> int:
        return await self._call(lambda: self._nodes.put(key, value, expected_version))

    async def put_many(
        self, entries: Sequence[Put], *, guard: tuple[str, int] | None = None
    ) -> list[int | VersionConflict]:
        return await self._call(lambda: self._nodes.put_many(entries, guard))

    async def put_ephemeral(self, key: str, value: bytes) -> int:
        version, self._session = await self._call(lambda: self._nodes.put_ephemeral(key, value))
        self._is_starting = False
        if self._session == self._lost_session:  # it ended before the thread's result arrived
            self._session_ended.set()
        else:
            self._session_ended.clear()
        return version

    async def wait_session_end(self) -> None:
        await self._session_ended.wait()

    def end_session(self) -> None:
        if self._threads is not None:
            # Closes the session with the server. When the loop runs again, it restarts the client (_session_lost).
            self._client.stop()

    async def delete(self, key: str, *, expected_version: int | None = None, keeps_version: bool = False) -> bool:
        return await self._call(lambda: self._nodes.delete(key, expected_version, keeps_version))

    async def children(self, key: str) -> list[str]:
        below = await self.read_tree(key)
        start = len(key) + 1 if key else 0
        return sorted({path[start:].split("/", 1)[0] for path in below if path != key})

    async def read_tree(self, prefix: str) -> dict[str, Versioned]:
        return await self._call(lambda: self._nodes.read_tree(prefix))

    async def watch(self, prefix: str) -> Watch:
        if self._threads is None:
            raise self._not_open()
        watch = Watch(prefix, on_close=lambda: self._forget(watch))
        self._watches.append(watch)
        return watch

    def _forget(self, watch: Watch) -> None:
        if watch in self._watches:
            self._watches = [other for other in self._watches if other is not watch]

    async def _call(self, work: Callable[[], R]) -> R:
        """Runs ``work`` on a thread. Until the broker is registered, a lost connection is retried: no caller would."""
        give_up_at = time.monotonic() + (self._connection_timeout_s if self._is_starting else 0.0)
        while True:
            if self._threads is None:
                raise self._not_open()
            try:
                if not self._connected.is_set():
                    # Counted from the loss, so that queued calls do not each wait the whole time one after another.
                    until = max(self._disconnected_at + self._call_timeout_s, give_up_at)
                    async with asyncio.timeout(max(0.0, until - time.monotonic())):
                        await self._connected.wait()
            except TimeoutError:
                raise StoreUnavailable(f"{self.address} cannot be reached") from None
            try:
                return await self._on_thread(work)
            except StoreUnavailable as error:
                if not isinstance(error.__cause__, LOST) or time.monotonic() >= give_up_at:
                    raise
                await asyncio.sleep(SHORTEST_RETRY_PAUSE_S)

    async def _on_thread(self, work: Callable[[], R]) -> R:
        assert self._threads is not None
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._guarded, work)

    def _guarded(self, work: Callable[[], R]) -> R:
        try:
            return work()
        except UnimplementedError as error:
            raise StoreUnavailable(f"{self.address} is older than ZooKeeper 3.6") from error
        except AuthFailedError as error:
            raise StoreUnavailable(f"{self.address} refused our credentials (skep.zookeeper.auth)") from error
        except NoAuthError as error:
            raise StoreUnavailable(
                f"{self.address} denies access to its nodes; check their ACLs and skep.zookeeper.auth"
            ) from error
        except FAILURES as error:
            raise StoreUnavailable(f"{self.address}: {type(error).__name__} {error}".rstrip()) from error

    def _not_open(self) -> StoreUnavailable:
        return StoreUnavailable(f"{self.address} is not open")

    def _state_changed(self, state: str, session: int | None) -> None:
        if self._threads is None:
            return
        if state == KazooState.CONNECTED:
            self._connected.set()
            if self._was_connected:
                logger.warning("reconnected to %s", self.address)
                self._tasks.spawn("metadata-watch", self._watch_again())
            self._was_connected = True
            return
        if self._connected.is_set():
            self._disconnected_at = time.monotonic()
            logger.warning("lost the connection to %s; reconnecting", self.address)
        self._connected.clear()
        if state == KazooState.LOST:
            self._session_lost(session)

    def _session_lost(self, session: int | None) -> None:
        self._lost_session = session
        if session is not None and session == self._session:
            logger.warning("the session with %s has ended, and its keys are deleted", self.address)
            self._session_ended.set()
        if self._client.client_state != KeeperState.EXPIRED_SESSION:
            # kazoo gives up when authentication fails, also if a server that was shutting down caused it.
            self._tasks.spawn("metadata-connection", self._start_again())

    async def _start_again(self) -> None:
        while True:
            await asyncio.sleep(LONGEST_RETRY_PAUSE_S)
            try:
                await self._on_thread(self._client.start_async)
                return
            except StoreUnavailable as error:
                logger.warning("cannot reconnect: %s", error)

    def _watch_all(self) -> None:
        self._nodes.watch_all(self._key_changed)

    def _key_changed(self, key: str) -> None:
        """Runs on kazoo's thread. It wakes the loop for the first of many keys; the loop then takes all of them."""
        self._changed_keys.append(key)
        if len(self._changed_keys) == 1:
            self._loop.call_soon_threadsafe(self._report_changed_keys)

    def _report_changed_keys(self) -> None:
        keys = set()
        while self._changed_keys:
            keys.add(self._changed_keys.popleft())
        for watch in self._watches:
            watch.report(Changed(frozenset(keys)))

    async def _watch_again(self) -> None:
        """Watches on a new connection, and reports that changes may have been missed before it."""
        while self._connected.is_set():
            try:
                await self._call(self._watch_all)
            except StoreUnavailable as error:
                logger.warning("cannot watch: %s", error)
                await asyncio.sleep(LONGEST_RETRY_PAUSE_S)
                continue
            for watch in self._watches:
                watch.report(Changed(frozenset(), missed=True))
            return
