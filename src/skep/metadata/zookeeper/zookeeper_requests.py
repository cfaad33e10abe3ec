"""What kazoo lacks and ZooKeeper has since 3.6, as requests that kazoo can send; and a faster wait for its sockets.

``addWatch``: one watch reports a whole tree, and is not used up by an event.
``multiRead``: many reads in one request, each for itself. 10,000 nodes are then 200 requests.
"""

import select
from collections.abc import Sequence
from typing import Any

from kazoo.exceptions import EXCEPTIONS
from kazoo.protocol.serialization import (
    GetChildren,
    GetData,
    Watch,
    int_struct,
    multiheader_struct,
    write_string,
)

_ERROR = -1


class AddWatch:
    """Answered with nothing but the absence of an error."""

    type = 106
    _PERSISTENT_RECURSIVE = 1

    def __init__(self, path: str) -> None:
        self.path = path

    def serialize(self) -> bytes:
        return bytes(write_string(self.path) + int_struct.pack(self._PERSISTENT_RECURSIVE))

    @classmethod
    def deserialize(cls, buffer: bytes, offset: int) -> bool:
        return True


class MultiRead:
    """Answered with a list: (data, state) for each of ``data_of``, names for each of ``children_of``, or exceptions."""

    type = 22

    def __init__(self, *, data_of: Sequence[str] = (), children_of: Sequence[str] = ()) -> None:
        self._reads = [GetData(path, None) for path in data_of] + [GetChildren(path, None) for path in children_of]

    def serialize(self) -> bytes:
        parts = [multiheader_struct.pack(read.type, False, _ERROR) + read.serialize() for read in self._reads]
        return b"".join([*parts, multiheader_struct.pack(_ERROR, True, _ERROR)])

    @classmethod
    def deserialize(cls, buffer: bytes, offset: int) -> list[Any]:
        answers: list[Any] = []
        while True:
            kind, is_end, _ = multiheader_struct.unpack_from(buffer, offset)
            offset += multiheader_struct.size
            if is_end:
                return answers
            if kind == GetData.type:
                data, stat = GetData.deserialize(buffer, offset)
                offset += int_struct.size + len(data or b"") + _STATE_SIZE
                answers.append((data or b"", stat))
            elif kind == GetChildren.type:
                names = GetChildren.deserialize(buffer, offset)
                offset += int_struct.size + sum(int_struct.size + len(name.encode()) for name in names)
                answers.append(names)
            else:
                (code,) = int_struct.unpack_from(buffer, offset)
                offset += int_struct.size
                answers.append(EXCEPTIONS[code]())


_STATE_SIZE = 68
"""Six longs and five ints."""


def event_path(buffer: bytes, offset: int) -> str:
    """The node that a message of a watch is about."""
    event, _ = Watch.deserialize(buffer, offset)
    return str(event.path)


def wait_for_sockets(
    readers: Sequence[Any], writers: Sequence[Any], others: Sequence[Any], timeout_s: float | None = None
) -> tuple[list[Any], list[Any], list[Any]]:
    """``select``, by ``poll``. kazoo's own makes and closes an epoll for each wait, and waits four times a request."""
    poll = select.poll()
    for reader in readers:
        poll.register(reader, select.POLLIN)
    for writer in writers:
        poll.register(writer, select.POLLOUT)
    ready = {descriptor for descriptor, _ in poll.poll(None if timeout_s is None else max(0.0, timeout_s * 1000))}
    return (
        [reader for reader in readers if reader.fileno() in ready],
        [writer for writer in writers if writer.fileno() in ready],
        [],
    )
