"""The process that compacts: reads requests from standard input and writes responses to standard output.

It is a process of its own because a pass uses a whole core for seconds, and because the broker's process does not
import numba (half a second, 100 MB). It only reads the log's files, writes only ``.cleaned`` files, and never outlives
the broker: it ends when its standard input ends, even in the middle of a pass. It runs one pass at a time.

A message is its length (``uint32``, big endian) and JSON. One request yields any number of groups, then one result::

    -> CompactionRequest
    <- {"group": CleanedGroup} ...
    <- {"result": PassResult} | {"damaged": text} | {"refused": text}
"""

import json
import os
import queue
import signal
import struct
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, BinaryIO

from skep.base.errors import StorageError
from skep.base.files.os_files import OsFiles
from skep.records.kernel_cache import use_if_needed
from skep.storage.compaction.compaction_plan import CompactionRequest

LENGTH = struct.Struct(">I")
_NICENESS = 5
_OPEN_FILES = 16
_PIECE_ROWS = 1000


class Throttle:
    """Waits so that no more than ``bytes_per_second`` are spent on average since it was created; 0: never waits."""

    def __init__(
        self,
        bytes_per_second: int,
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._rate = bytes_per_second
        self._monotonic = monotonic
        self._sleep = sleep
        self._begun = monotonic()
        self._spent = 0

    def spend(self, size: int) -> None:
        if self._rate > 0:
            self._spent += size
            ahead = self._spent / self._rate - (self._monotonic() - self._begun)
            if ahead > 0:
                self._sleep(ahead)


def encode(message: dict[str, Any]) -> bytes:
    data = ("{" + ",".join(f'"{name}":{_as_text(value)}' for name, value in message.items()) + "}").encode()
    return LENGTH.pack(len(data)) + data


def _as_text(value: Any) -> str:
    """Returns JSON; encodes a long list in pieces, because the encoder blocks all other threads until it returns."""
    if not isinstance(value, list):
        return json.dumps(value)
    pieces = (value[start : start + _PIECE_ROWS] for start in range(0, len(value), _PIECE_ROWS))
    return "[" + ",".join(json.dumps(piece)[1:-1] for piece in pieces) + "]"


def main(cache_directory: str) -> None:
    """Runs until standard input ends."""
    # Ctrl-C is sent to all processes of the terminal; the broker decides when this one ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.nice(_NICENESS)
    # Output of a library must not get between the messages.
    responses = os.fdopen(os.dup(sys.stdout.fileno()), "wb", buffering=0)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    requests: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(sys.stdin.buffer, requests), daemon=True).start()
    use_if_needed(cache_directory)
    while True:
        for response in _responses(CompactionRequest(**requests.get())):
            responses.write(encode(response))


def _listen(stream: BinaryIO, requests: "queue.SimpleQueue[dict[str, Any]]") -> None:
    while head := stream.read(LENGTH.size):
        (length,) = LENGTH.unpack(head)
        requests.put(json.loads(stream.read(length)))
    os._exit(0)


def _responses(request: CompactionRequest) -> Any:
    from skep.storage.compaction.batch_reader import DamagedLog
    from skep.storage.compaction.compaction_pass import CompactionPass

    compaction = CompactionPass(OsFiles(_OPEN_FILES), request, Throttle(request.max_bytes_per_second).spend)
    try:
        for group in compaction.run():
            yield {"group": group._asdict()}
        yield {"result": compaction.result()._asdict()}
    except DamagedLog as error:
        yield {"damaged": str(error)}
    except StorageError as error:
        yield {"refused": str(error)}


if __name__ == "__main__":
    main(sys.argv[1])
