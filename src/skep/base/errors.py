"""Errors sorted by whose fault they are; the class decides how a request ends.

========================  =====================================================================
the peer's bytes          ``DecodeError``: the connection is closed with one log line
the request, answerably   ``KafkaError``: a code in the answer, per partition where there is one
the disk                  ``StorageError``: answered as KAFKA_STORAGE_ERROR
the metadata store        ``StoreUnavailable``, ``VersionConflict``: retry on a fresh image; ``Fenced``: resign
the operator              ``OptionError``, ``StartupError``: one line on stderr, exit code 2
========================  =====================================================================

Anything else is a bug of ours: UNKNOWN_SERVER_ERROR, its traceback logged once, in dispatch.
"""

import sys

# kio imports hypothesis where it is installed, to register strategies for its types. That takes half a second, in each
# of the Python processes that Spark starts for one read. It is hidden only from kio: the process may want it itself.
_is_hidden = "hypothesis" not in sys.modules
if _is_hidden:
    sys.modules["hypothesis"] = None  # type: ignore[assignment]
try:
    from kio.schema.errors import ErrorCode
finally:
    if _is_hidden:
        del sys.modules["hypothesis"]

__all__ = [
    "DecodeError",
    "ErrorCode",
    "Fenced",
    "KafkaError",
    "OptionError",
    "StartupError",
    "StorageError",
    "StoreUnavailable",
    "VersionConflict",
]


class DecodeError(Exception):
    """The peer sent bytes that are not a request; nothing can be answered."""


class KafkaError(Exception):
    """A refusal with Kafka's error code and a sentence for the person who reads the client's log."""

    def __init__(self, code: ErrorCode, detail: str = "") -> None:
        super().__init__(detail or code.name)
        self.code = code
        self.detail = detail


class StorageError(Exception):
    """The disk refused a read, a write or a sync. The bytes in question were not acknowledged."""


class StoreUnavailable(Exception):
    """The metadata store cannot be reached, or refused a write; what was read before may be stale."""


class VersionConflict(Exception):
    """A compare-and-set in the metadata store lost against another writer: read again, decide again."""


class Fenced(Exception):
    """A guarded write came from one that has been succeeded, such as an older controller; it was not made.

    Not a VersionConflict: reading and deciding again is what a fenced writer must not do.
    """


class OptionError(Exception):
    """An option is unknown or has a value that it cannot have."""


class StartupError(Exception):
    """The broker cannot start: port taken, directory in use or not writable."""
