"""Error codes and messages of responses that have one per topic, partition or resource."""

from collections import Counter
from collections.abc import Hashable, Iterable
from typing import TypeVar

from skep.base.errors import ErrorCode, KafkaError, StorageError, StoreUnavailable, VersionConflict

RESPONSE_ERRORS = (KafkaError, StorageError, StoreUnavailable, VersionConflict)
"""The errors for which a response has a code. All others are bugs."""

MAX_MESSAGE_LENGTH = 1000
"""Messages quote the client's values, and a string of the older versions has at most 32,767 bytes."""

H = TypeVar("H", bound=Hashable)


def code_of(error: Exception) -> ErrorCode:
    if isinstance(error, KafkaError):
        return error.code
    if isinstance(error, StorageError):
        return ErrorCode.kafka_storage_error
    if isinstance(error, StoreUnavailable | VersionConflict):
        # Every client retries this code. Kafka returns it too while its metadata cannot be written.
        return ErrorCode.coordinator_not_available
    return ErrorCode.unknown_server_error


def message_of(error: Exception) -> str:
    message = str(error)
    return message if len(message) <= MAX_MESSAGE_LENGTH else message[:MAX_MESSAGE_LENGTH] + "..."


def repeated(things: Iterable[H]) -> set[H]:
    """Returns the items that occur more than once."""
    return {thing for thing, count in Counter(things).items() if count > 1}
