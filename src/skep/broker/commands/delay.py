"""The command ``delay``: when one record of a share group is delivered again.

Of a record that a member holds: how long it waits if this delivery fails, instead of what the group's options say, and
why it fails, for its dead letter. That counts for this delivery only, and is lost with the leader. Of a record that
waits already: the time from now on. An earlier time than before is lost with the leader too.

Arguments
    ``group``, ``topic``, ``partition``, ``offset``; ``delay_ms``, which may be left out to give only a ``text``;
    ``member``, which has to hold the record if it is given.

Result
    ``state``: ``acquired`` or ``waiting``.

Refusals
    INVALID_RECORD_STATE: no member, or another one, holds the record, and it does not wait.
"""

from collections.abc import Mapping
from typing import Any

from skep.base.config.retry_backoff import LONGEST_DELAY_MS
from skep.base.errors import ErrorCode, KafkaError
from skep.broker.commands.command import Command, number, text
from skep.broker.commands.deliveries import WAITING
from skep.broker.commands.share_place import PLACE, place_of
from skep.broker.services import Services


def _delay(services: Services, arguments: Mapping[str, Any]) -> dict[str, str]:
    key, _ = place_of(services, arguments)
    share = services.share_partitions.active(key)
    if share is None or share.window is None:
        raise KafkaError(
            ErrorCode.invalid_record_state, f"no member of group {key.group_id!r} fetches from the partition now"
        )
    offset, delay_ms, member = arguments["offset"], arguments["delay_ms"], arguments["member"]
    if member is None and delay_ms is not None and share.window.waits(offset):
        share.reschedule(offset, delay_ms)
        return {"state": WAITING}
    share.delay(offset, delay_ms, member=member, text=arguments["text"])
    return {"state": "acquired"}


COMMAND = Command(
    _delay,
    {
        **PLACE,
        "offset": number(),
        "delay_ms": number(most=LONGEST_DELAY_MS, default=None),
        "member": text(most=36, default=None),
        "text": text(default=""),
    },
)
