"""Which group ids are taken, before anything is looked up under them."""

from skep.base.errors import ErrorCode, KafkaError
from skep.broker.services import Services


def check_group_id(services: Services, group_id: str, *, may_be_empty: bool = False) -> None:
    """INVALID_GROUP_ID. Offsets may be kept under an empty id: consumers that were never in a group did so."""
    if not group_id and not may_be_empty:
        raise KafkaError(ErrorCode.invalid_group_id, "the group id is empty")
    limit = services.config.max_group_id_bytes
    if len(group_id) > limit or (not group_id.isascii() and len(group_id.encode()) > limit):
        raise KafkaError(ErrorCode.invalid_group_id, f"the group id {group_id[:40]!r}... is longer than {limit} bytes")
