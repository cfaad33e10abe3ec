"""The job ``dead-letters`` of the worker: copies dead records of share partitions when the broker asks.

::

    -> {"job": "dead-letters", "id": 7, "group": ..., "topic": ..., the other fields of CopyRequest}
    <- {"id": 7, "error": null, "serial": "4f...", "ranges": [[3, 3], [7, 9]]}     all these are copied
    <- {"id": 7, "error": "..."}                                                  nothing is known to be copied

The broker sends one request at a time for a share partition.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import cached_property
from typing import Any

from confluent_kafka.admin import AdminClient

from skep.worker.dead_letter_copier import CopyFailed, CopyRequest, DeadLetterCopier, LastCopy
from skep.worker.job import Message, Settings

_THREADS = 8
"""A copy that waits for a dead-letter topic without a leader must not hold up those of other groups."""
_KEPT_COPIERS = 16
"""A client has threads and connections. One that was closed costs its next request about 50 ms."""
_CLOSING_S = 1.0

Key = tuple[str, str, int]


class DeadLetterJob:
    """Owns the copiers, those used last at the end. A copier that is in use is not in the table."""

    def __init__(self, settings: Settings) -> None:
        self._client: dict[str, Any] = {
            **settings.security,
            "bootstrap.servers": settings.bootstrap,
            "client.id": settings.client_id,
            "log_level": 0,
        }
        self._copiers: OrderedDict[Key, DeadLetterCopier] = OrderedDict()
        self._lock = threading.Lock()
        self._threads = ThreadPoolExecutor(_THREADS, "dead-letters")
        self._running: set[Future[LastCopy]] = set()

    @cached_property
    def _admin(self) -> AdminClient:
        return AdminClient(self._client)

    def receive(self, message: Message, reply: Callable[[Message], None]) -> None:
        fields = {name: message[name] for name in CopyRequest._fields}
        running = self._threads.submit(self.copy, CopyRequest(**fields))
        self._running.add(running)

        def answer(copied: "Future[LastCopy]") -> None:
            self._running.discard(copied)
            if copied.cancelled():
                return
            if (error := copied.exception()) is None:
                reply({"serial": copied.result().serial, "ranges": copied.result().ranges})
            else:
                # The broker waits for a reply to every request. It logs the error and sends the request again.
                reply({"error": str(error) if isinstance(error, CopyFailed) else f"{type(error).__name__}: {error}"})

        running.add_done_callback(answer)

    def copy(self, request: CopyRequest) -> LastCopy:
        key = request.group, request.topic_id, request.partition
        with self._lock:
            copier = self._copiers.pop(key, None) or DeadLetterCopier(self._client, self._admin)
        try:
            return copier.copy(request)
        finally:
            self._keep(key, copier)

    def _keep(self, key: Key, copier: DeadLetterCopier) -> None:
        unwanted = []
        with self._lock:
            self._copiers[key] = copier
            while len(self._copiers) > _KEPT_COPIERS:
                unwanted.append(self._copiers.popitem(last=False)[1])
        for one in unwanted:
            one.close()

    def close(self) -> None:
        """What is not finished in a second is aborted by the next copier, or by the transaction's time-out."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        wait(tuple(self._running), _CLOSING_S)
