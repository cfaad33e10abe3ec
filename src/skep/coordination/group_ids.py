"""Which ids of groups and members the coordinator accepts."""

from skep.base.config.coordinator_config import CoordinatorConfig
from skep.base.errors import ErrorCode, KafkaError


def check_group_id(config: CoordinatorConfig, group_id: str, *, may_be_empty: bool = False) -> None:
    """Raises INVALID_GROUP_ID for an id that is empty or too long.

    ``may_be_empty`` is for offsets: consumers that were never in a group committed them under an empty id.
    """
    if not group_id and not may_be_empty:
        raise KafkaError(ErrorCode.invalid_group_id, "the group id is empty")
    limit = config.max_group_id_bytes
    if len(group_id) > limit or (not group_id.isascii() and len(group_id.encode()) > limit):
        raise KafkaError(
            ErrorCode.invalid_group_id,
            f"the group id {group_id[:40]!r}... is longer than {limit} bytes (skep.max.group.id.bytes)",
        )


def check_ids(longest: int, **ids: str | None) -> None:
    """Raises INVALID_REQUEST for an id that is blank or longer than ``longest`` bytes. None: the request has none."""
    for name, value in ids.items():
        if value is not None and not value.strip():
            raise KafkaError(ErrorCode.invalid_request, f"{name} can't be empty.")
    for name, value in ids.items():
        if value is not None and len(value) > longest // 4 and len(value.encode()) > longest:
            raise KafkaError(ErrorCode.invalid_request, f"{name} is longer than {longest} bytes.")
