"""Frames of responses out of a stream of bytes, for the client's side of a connection. Sans-IO.

A frame is four bytes of length and a response. The client chose its broker and bounded what it asked for. So, unlike
the requests of unknown clients (``frame_reader``), a long response gets a buffer of its whole length at once and the
socket is read into it: the mebibytes of a Fetch response are not copied here, apart from what arrived with the length
(at most ``SCRATCH_SIZE``).

The receiver of a frame owns it. A receiver that is done with a frame can pass it to ``recycle``: its buffer serves the
next long response, which saves filling a new one with zeros and page faults.
"""

from skep.base.errors import DecodeError
from skep.wire.primitives import INT32

SCRATCH_SIZE = 64 * 1024
_LENGTH = INT32.size
_SHORTEST = INT32.size
"""A correlation id."""
LARGEST_SPARE = 4 << 20


class ResponseFrames:
    """Cuts the bytes of one connection into frames.

    Between calls one of two is true: ``_own`` is the buffer of a response of which ``_filled`` bytes, not all, have
    arrived; or ``_own`` is None, and ``_scratch`` begins with ``_filled`` bytes, at most three, of the next length.
    ``_spare`` is a buffer that nobody uses.
    """

    __slots__ = ("_filled", "_largest_spare", "_max_bytes", "_own", "_scratch", "_spare")

    def __init__(self, max_bytes: int, *, largest_spare: int = LARGEST_SPARE) -> None:
        self._max_bytes = max_bytes
        self._largest_spare = largest_spare
        self._scratch = memoryview(bytearray(SCRATCH_SIZE))
        self._own: memoryview | None = None
        self._spare = bytearray()
        self._filled = 0

    @property
    def is_empty(self) -> bool:
        """Whether no part of a frame has arrived."""
        return self._own is None and not self._filled

    def recycle(self, frame: memoryview) -> None:
        """Takes back a frame that its receiver, with all views into it, no longer reads."""
        buffer = frame.obj
        if isinstance(buffer, bytearray) and len(self._spare) < len(buffer) <= self._largest_spare:
            self._spare = buffer

    def drop_spare(self) -> None:
        """Frees the spare buffer, of a connection that will be idle."""
        self._spare = bytearray()

    def get_buffer(self) -> memoryview:
        """Returns where the next bytes go; never empty."""
        return (self._scratch if self._own is None else self._own)[self._filled :]

    def received(self, size: int) -> list[memoryview]:
        """Returns the frames that ``size`` bytes more in the buffer complete, without their lengths.

        Raises DecodeError for an impossible length.
        """
        self._filled += size
        own = self._own
        if own is None:
            return self._cut()
        if self._filled < len(own):
            return []
        self._own, self._filled = None, 0
        return [own]

    def _new_buffer(self, size: int) -> memoryview:
        if len(self._spare) < size:
            return memoryview(bytearray(size))
        spare, self._spare = self._spare, bytearray()
        return memoryview(spare)[:size]

    def _cut(self) -> list[memoryview]:
        scratch, filled, position = self._scratch, self._filled, 0
        frames: list[memoryview] = []
        while filled - position >= _LENGTH:
            (length,) = INT32.unpack_from(scratch, position)
            if not _SHORTEST <= length <= self._max_bytes:
                raise DecodeError(f"a response of {length} bytes; the limit is {self._max_bytes}")
            start, end = position + _LENGTH, position + _LENGTH + length
            if end > filled:
                own = self._own = self._new_buffer(length)
                own[: filled - start] = scratch[start:filled]
                self._filled = filled - start
                return frames
            frames.append(memoryview(bytes(scratch[start:end])))
            position = end
        self._filled = filled - position
        scratch[: self._filled] = scratch[position:filled]
        return frames
