"""The command ``renew``: a member goes on with records that it holds, and their locks begin anew.

Kafka's protocol has renewals (KIP-1222), which belong to a share session. A program whose client library does not send
them knows neither its session nor, often, its member id. So a delivery is named by the offset and the delivery count of
the record: a record that went to somebody else meanwhile has another count.

Arguments
    ``group``, ``topic``, ``partition``; ``deliveries``: pairs of offset and delivery count.

Result
    ``lost``: the offsets whose delivery has ended, by an acknowledgement or because the lock has expired.
    ``lock_ms``: how long the others are locked from now on.

Refusals
    INVALID_RECORD_STATE: the group does not allow renewals (``share.renew.acknowledge.enable``).
"""

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from skep.broker.commands.command import Argument, Command
from skep.broker.commands.share_place import PLACE, place_of
from skep.broker.services import Services
from skep.coordination.share.acknowledgement import Acknowledgement, AcknowledgeType

MOST = 1000
LARGEST = (1 << 63) - 1


def _renew(services: Services, arguments: Mapping[str, Any]) -> dict[str, Any]:
    key, _ = place_of(services, arguments)
    share = services.share_partitions.active(key)
    lost: list[int] = []
    renewed: dict[str, list[Acknowledgement]] = defaultdict(list)
    for offset, delivery_count in sorted(map(tuple, arguments["deliveries"])):
        member = None if share is None or share.window is None else share.window.holder(offset, delivery_count)
        if member is None:
            lost.append(offset)
        else:
            renewed[member].append(Acknowledgement(offset, offset, (AcknowledgeType.RENEW,)))
    if share is not None:
        for member, batches in renewed.items():
            share.acknowledge(member, batches)
    return {"lost": lost, "lock_ms": services.share_partitions.options(key.group_id).record_lock_duration_ms}


def _is_delivery(value: Any) -> bool:
    return (
        isinstance(value, list) and len(value) == 2 and all(type(one) is int and 0 <= one <= LARGEST for one in value)
    )


def _are_deliveries(value: Any) -> bool:
    return isinstance(value, list) and 0 < len(value) <= MOST and all(map(_is_delivery, value))


COMMAND = Command(
    _renew,
    {**PLACE, "deliveries": Argument(_are_deliveries, f"a list of 1 to {MOST} pairs [offset, delivery count]")},
)
