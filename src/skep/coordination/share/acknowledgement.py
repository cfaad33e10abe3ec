"""The acknowledgements of a share group's members, and the checks of them that need no state."""

import enum
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

from skep.base.errors import ErrorCode, KafkaError


class AcknowledgeType(enum.IntEnum):
    """Kafka: AcknowledgeType. The numbers are those of the protocol."""

    GAP = 0
    """No record exists at the offset, e.g. because of compaction, or it is a transaction marker."""
    ACCEPT = 1
    RELEASE = 2
    """To be delivered again."""
    REJECT = 3
    """Not to be delivered again."""
    RENEW = 4
    """Still being processed: the lock begins anew (KIP-1222)."""


class Acknowledgement(NamedTuple):
    """One type for all offsets from ``first`` to ``last``, both inclusive, or one type for each of them."""

    first: int
    last: int
    types: Sequence[int]

    def by_type(self) -> Iterator[tuple[int, int, int]]:
        """Yields first, last and type of each range of offsets with the same type."""
        if len(self.types) == 1:
            yield self.first, self.last, self.types[0]
            return
        first = self.first
        for kind, same in groupby(self.types):
            following = first + sum(1 for _ in same)
            yield first, following - 1, kind
            first = following


def check_acknowledgements(batches: Sequence[Acknowledgement], *, has_renew: bool, is_renew_ack: bool) -> None:
    """Raises INVALID_REQUEST for batches of one partition that are wrong whatever was acquired.

    ``has_renew`` is true from version 2 of the requests on. A request with a renewal must set ``is_renew_ack``.
    """
    previous_last = -1
    highest = AcknowledgeType.RENEW if has_renew else AcknowledgeType.REJECT
    for first, last, types in batches:
        if first > last:
            raise _invalid(f"the batch {first}-{last} ends before it begins")
        if first < previous_last:
            raise _invalid(f"the batch {first}-{last} begins before the end of the previous one, {previous_last}")
        if not types:
            raise _invalid(f"the batch {first}-{last} has no acknowledge type")
        if len(types) > 1 and last - first != len(types) - 1:
            raise _invalid(f"the batch {first}-{last} has {len(types)} acknowledge types; send one, or one per offset")
        if min(types) < 0 or max(types) > highest:
            raise _invalid(f"the batch {first}-{last} has acknowledge types from {min(types)} to {max(types)}")
        if AcknowledgeType.RENEW in types and not is_renew_ack:
            raise _invalid(f"the batch {first}-{last} has a renewal in a request that is not marked as one")
        previous_last = last


def _invalid(why: str) -> KafkaError:
    return KafkaError(ErrorCode.invalid_request, why)
