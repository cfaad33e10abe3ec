"""Errors, by whose fault they are. The class decides how a request ends.

========================  =====================================================================
the peer's bytes          ``DecodeError``: the connection is closed with one log line
the request               ``KafkaError``: an error code in the response, per partition if it has partitions
the disk                  ``StorageError``: KAFKA_STORAGE_ERROR in the response
the metadata store        ``StoreUnavailable``, ``VersionConflict``: retry on a fresh image; ``Fenced``: resign
the operator              ``OptionError``, ``StartupError``: one line on stderr, exit code 2
========================  =====================================================================

Anything else is a bug: UNKNOWN_SERVER_ERROR, and dispatch logs the traceback once.
"""

import sys

# kio imports hypothesis if it is installed, to register strategies for its types. That takes half a second in each of
# the Python processes that Spark starts for one read. It is hidden only from kio: the process may need it itself.
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
    """The peer sent bytes that are not a request, so there is no response to them."""


class KafkaError(Exception):
    """A refusal: Kafka's error code, and a sentence for the reader of the client's log."""

    def __init__(self, code: ErrorCode, detail: str = "") -> None:
        super().__init__(detail or code.name)
        self.code = code
        self.detail = detail


class StorageError(Exception):
    """The disk refused a read, a write or a sync. The bytes concerned were not acknowledged."""


class StoreUnavailable(Exception):
    """The metadata store cannot be reached or refused a write. What was read before may be stale."""


class VersionConflict(Exception):
    """A compare-and-set in the metadata store lost against another writer. Read again and decide again."""


class Fenced(Exception):
    """A guarded write was refused because its writer has been replaced, for example an older controller.

    It is not a VersionConflict: a fenced writer must not read and decide again.
    """


class OptionError(Exception):
    """An option is unknown or has an invalid value."""


class StartupError(Exception):
    """The broker cannot start: port taken, directory in use or not writable."""
