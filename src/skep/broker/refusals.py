"""What an error becomes in an answer that has a code per topic or resource: one may fail while the others succeed."""

from collections import Counter
from collections.abc import Hashable, Iterable
from typing import TypeVar

from skep.base.errors import ErrorCode, KafkaError, StorageError, StoreUnavailable, VersionConflict

ANSWERABLE = (KafkaError, StorageError, StoreUnavailable, VersionConflict)

MAX_MESSAGE_LENGTH = 1000
"""Messages quote what the client sent; a string of the older versions ends at 32,767 bytes."""

H = TypeVar("H", bound=Hashable)


def code_of(error: Exception) -> ErrorCode:
    if isinstance(error, KafkaError):
        return error.code
    if isinstance(error, StorageError):
        return ErrorCode.kafka_storage_error
    if isinstance(error, StoreUnavailable | VersionConflict):
        # Retriable to every client; Kafka answers the same way while its own metadata cannot be written.
        return ErrorCode.coordinator_not_available
    return ErrorCode.unknown_server_error


def message_of(error: Exception) -> str:
    message = str(error)
    return message if len(message) <= MAX_MESSAGE_LENGTH else message[:MAX_MESSAGE_LENGTH] + "..."


def repeated(things: Iterable[H]) -> set[H]:
    """What is there more than once."""
    return {thing for thing, count in Counter(things).items() if count > 1}
