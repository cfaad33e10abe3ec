"""One client of a cluster for all that a process reads and writes there, so that connections are used again."""

import os
import threading
from typing import Any

from skep.client.cluster_client import ClusterClient


class _Shared(threading.local):
    """A thread's clients: one is used by one thread at a time."""

    def __init__(self) -> None:
        self.process_id = os.getpid()
        self.clients: dict[Any, ClusterClient] = {}


_shared = _Shared()


def shared_cluster(bootstrap: str, **options: Any) -> ClusterClient:
    """The client of this process, thread, address and these options; nobody closes it.

    A process that was forked makes its own: on a socket that two processes have, each would take answers of the other.
    """
    if _shared.process_id != os.getpid():
        # Closes our copies of the descriptors; the parent's connections stay.
        for inherited in _shared.clients.values():
            inherited.close()
        _shared.process_id, _shared.clients = os.getpid(), {}
    key = (bootstrap, *sorted(options.items()))
    client = _shared.clients.get(key)
    if client is None:
        client = _shared.clients[key] = ClusterClient(bootstrap, **options)
    return client
