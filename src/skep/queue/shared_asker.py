"""``ask``: the Asker that all threads of a process share, one for each address of brokers and configuration."""

import atexit
import os
import threading
from collections.abc import Iterable, Mapping
from operator import itemgetter
from typing import Any

from skep.queue.asker import DEFAULT_TIMEOUT_S, Asker
from skep.queue.server_address import plain_properties

_askers: dict[tuple[Any, ...], Asker] = {}
_askers_lock = threading.Lock()


def ask(
    topic: str,
    value: bytes | str | None,
    *,
    timeout: float = DEFAULT_TIMEOUT_S,
    key: bytes | str | None = None,
    headers: Iterable[tuple[str, str | bytes | None]] = (),
    reply_topic: str | None = None,
    bootstrap_servers: str | None = None,
    config: Mapping[str, Any] | None = None,
) -> bytes | None:
    """Writes a request to ``topic``, waits for its answer, and returns the value of the answer.

    The answer comes through ``reply_topic``, ``<topic>.replies`` if it is not given, which is created if it does not
    exist. The process has one Asker for each address and ``config``, which all threads use. Raises as ``Asker.ask``
    does.
    """
    return _shared(bootstrap_servers, config or {}).ask(
        topic, value, timeout=timeout, key=key, headers=headers, reply_topic=reply_topic
    )


def _shared(bootstrap_servers: str | None, config: Mapping[str, Any]) -> Asker:
    # A process that was forked has no threads of its parent.
    servers = plain_properties(bootstrap_servers, None)["bootstrap.servers"]
    key = (os.getpid(), servers, tuple(sorted(config.items(), key=itemgetter(0))))
    with _askers_lock:
        if key not in _askers:
            _askers[key] = Asker(bootstrap_servers, config=config)
            atexit.register(_askers[key].close)
        return _askers[key]
