"""The command ``plain_users``: the names of users that have a password for PLAIN.

Arguments
    ``after``: the name that the first one has to be past, the ``next`` of the response before.

Result
    ``users``: at most 1000 names, in order; ``next``: null if no users are left.
"""

from collections.abc import Mapping
from typing import Any

from skep.broker.commands.command import Command, text
from skep.broker.services import Services
from skep.metadata.cluster_image import USERS
from skep.wire.sasl.plain import PLAIN

MOST = 1000


def _list(services: Services, arguments: Mapping[str, Any]) -> dict[str, Any]:
    entries = services.catalog.image.entries_of(USERS)
    left = sorted(name for name, fields in entries.items() if PLAIN in fields and name > arguments["after"])
    return {"users": left[:MOST], "next": left[MOST - 1] if len(left) > MOST else None}


COMMAND = Command(_list, {"after": text(default="")})
