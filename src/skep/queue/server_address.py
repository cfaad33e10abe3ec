"""The properties of librdkafka that all clients of this package have in common: addresses, logging, patience."""

import logging
import os
import re
from collections.abc import Mapping
from typing import Any

from skep.base.addresses import DEFAULT_BOOTSTRAP
from skep.client.security.client_properties import librdkafka_properties

CONNECT_S = 30.0
"""How long a broker may take to answer the first request. A broker that is lost later is waited for without end."""
REQUEST_S = 30.0


REPEAT_S = 10.0
MOST_KNOWN = 100


class NewLines(logging.Filter):
    """Limits how often the same line of librdkafka is logged. Each of several clients logs every attempt to connect,
    tens of times a second, and every share consumer logs at its start that it is a preview."""

    def __init__(self) -> None:
        super().__init__()
        self._logged_at: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        text = re.sub(r"\d+", "", record.getMessage())
        if "SHARECONSUMER" in text:
            return False
        if record.created < self._logged_at.get(text, -REPEAT_S) + REPEAT_S:
            return False
        if len(self._logged_at) >= MOST_KNOWN:
            self._logged_at.clear()
        self._logged_at[text] = record.created
        return True


logging.getLogger("skep.queue.librdkafka").addFilter(NewLines())

_OF_CONSUMERS = ("share.acknowledgement.mode", "max.poll.interval.ms")


def plain_properties(bootstrap_servers: str | None, config: Mapping[str, Any] | None) -> dict[str, Any]:
    """Returns the properties of any client. Those of the user come first, except for the address.

    Security settings of the user may have the names of Java. Raises BadSetting for a wrong one.
    """
    servers = bootstrap_servers or os.environ.get("SKEP_BOOTSTRAP") or DEFAULT_BOOTSTRAP
    common = {
        "client.id": "skep-queue",
        "logger": logging.getLogger("skep.queue.librdkafka"),
        # By default librdkafka waits for up to 10 s between two attempts to connect. That is too long after a restart.
        "reconnect.backoff.max.ms": 1_000,
    }
    return {**common, **librdkafka_properties(config or {}), "bootstrap.servers": servers}


def client_properties(bootstrap_servers: str | None, config: Mapping[str, Any] | None) -> dict[str, Any]:
    """Returns the properties of a share consumer, without its group."""
    return {
        **plain_properties(bootstrap_servers, config),
        "share.acknowledgement.mode": "explicit",
        # A lane polls when its handlers have ended, and is a member of its group all the time.
        "max.poll.interval.ms": 86_400_000,
    }


def admin_properties(client: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in client.items() if name not in _OF_CONSUMERS}
