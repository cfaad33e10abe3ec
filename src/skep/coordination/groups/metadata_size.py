"""The size of the metadata that the members of a group send, and its limit.

Members are held in memory, and a classic group is written as one record when it becomes stable. A group with more
metadata than can ever be written would never get an assignment, and a client could fill the memory with a few
requests. So each group keeps the sum, and a member that would make it too large is refused.
"""

from collections.abc import Iterable

from skep.base.config.coordinator_config import CoordinatorConfig
from skep.base.errors import ErrorCode, KafkaError

ENTRY_BYTES = 16
"""Added for each topic or protocol: a million names of one character take more than a megabyte."""


def text_bytes(*texts: str | None) -> int:
    return sum(len(text) if text.isascii() else len(text.encode()) for text in texts if text)


def topics_bytes(names: Iterable[str]) -> int:
    return sum(ENTRY_BYTES + text_bytes(name) for name in names)


def protocols_bytes(protocols: Iterable[tuple[str, bytes]]) -> int:
    return sum(ENTRY_BYTES + text_bytes(name) + len(metadata) for name, metadata in protocols)


def has_room(settings: CoordinatorConfig, group_bytes: int, before: int, after: int) -> bool:
    """Whether a group may have a member with ``after`` bytes of metadata in place of ``before``.

    A member that does not grow may stay, also when the limit has been lowered.
    """
    return after <= before or group_bytes - before + after <= settings.max_group_metadata_bytes


def too_large(settings: CoordinatorConfig) -> KafkaError:
    """GROUP_MAX_SIZE_REACHED: clients give up on this code, and would retry most others for ever."""
    return KafkaError(
        ErrorCode.group_max_size_reached,
        "The metadata of the group's members would exceed"
        f" skep.max.group.metadata.bytes ({settings.max_group_metadata_bytes}).",
    )
