"""How much a group keeps of what its members say, and how much that may be.

Members are held in memory and, when a classic group comes to rest, written as one record. A group of which more is said
than can ever be written would come to no assignment, and a client could fill the memory with a few requests. So each
group keeps the sum, and who would make it too large is refused.
"""

from collections.abc import Iterable

from skep.base.config.coordinator_config import CoordinatorConfig
from skep.base.errors import ErrorCode, KafkaError

ENTRY_BYTES = 16
"""What a topic or protocol counts beside its text: a million names of one character are not a megabyte."""


def text_bytes(*texts: str | None) -> int:
    return sum(len(text) if text.isascii() else len(text.encode()) for text in texts if text)


def topics_bytes(names: Iterable[str]) -> int:
    return sum(ENTRY_BYTES + text_bytes(name) for name in names)


def protocols_bytes(protocols: Iterable[tuple[str, bytes]]) -> int:
    return sum(ENTRY_BYTES + text_bytes(name) + len(metadata) for name, metadata in protocols)


def has_room(settings: CoordinatorConfig, group_bytes: int, before: int, after: int) -> bool:
    """Whether a group may have a member that says ``after`` bytes where it said ``before``.

    Whoever says no more than before may stay, also when the limit has been lowered.
    """
    return after <= before or group_bytes - before + after <= settings.max_group_metadata_bytes


def too_large(settings: CoordinatorConfig) -> KafkaError:
    """GROUP_MAX_SIZE_REACHED: clients give up on it, where they would try others again for ever."""
    return KafkaError(
        ErrorCode.group_max_size_reached,
        f"The members of the group would say more than {settings.max_group_metadata_bytes} bytes of themselves"
        " (skep.max.group.metadata.bytes).",
    )
