"""What is looked up and set once, before a queue consumer joins its group."""

import logging
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # it exports without saying so
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from skep.base.unknown_names import no_such_topic
from skep.client.errors import ClientError, Unreachable
from skep.queue.server_address import CONNECT_S, REQUEST_S, admin_properties

log = logging.getLogger("skep.queue")

LOCK_DURATION, OFFSET_RESET = "share.record.lock.duration.ms", "share.auto.offset.reset"
WANTED = {
    # Otherwise a member gets whole batches, however few records it asks for.
    "skep.share.acquire.mode": ("batch_optimized", "record_limit"),
    # Otherwise records that a consumer gives back when it stops would have one delivery less.
    "skep.share.count.failures.only": ("auto", "true"),
}
"""Options of a group: if they have the first value, the default, they get the second."""
MEMBERS, SHARED = "skep.share.members", "shared"
DEFAULT_LOCK_MS = 30_000
PROPAGATION_S, PAUSE_S = 2.0, 0.1
"""How long a topic created on one broker may take to be visible on another; how often to look."""


class GroupFacts(NamedTuple):
    lock_s: float
    """How long a record is locked."""
    is_shared: bool
    """Whether several members get records (``skep.share.members``)."""


def prepare_group(client: Mapping[str, Any], group: str, topics: tuple[str, ...], start: str | None) -> GroupFacts:
    """Checks that the topics exist, and sets the options of the group that are needed."""
    admin = AdminClient(admin_properties(client))
    try:
        _check_topics(admin, client, topics)
        options = _options(admin, group)
        if not options.keys() >= WANTED.keys():
            log.warning("the brokers are not Skep, or older: a consumer may be given more records than its prefetch")
        changes = {name: value for name, (default, value) in WANTED.items() if options.get(name) == default}
        if start is not None and options.get(OFFSET_RESET) != start:
            changes[OFFSET_RESET] = start
        if changes:
            _set_options(admin, group, changes)
    except KafkaException as error:
        raise ClientError(f"group '{group}': {error.args[0].str()}") from None
    lock_ms = int(options.get(LOCK_DURATION) or DEFAULT_LOCK_MS)
    return GroupFacts(lock_ms / 1000, options.get(MEMBERS, SHARED) == SHARED)


def _check_topics(admin: AdminClient, client: Mapping[str, Any], topics: tuple[str, ...]) -> None:
    deadline = time.monotonic() + PROPAGATION_S
    while True:
        try:
            known = admin.list_topics(timeout=CONNECT_S).topics
        except KafkaException as error:
            if error.args[0].code() in (KafkaError._TRANSPORT, KafkaError._TIMED_OUT, KafkaError._ALL_BROKERS_DOWN):
                raise Unreachable(f"no broker answers at {client['bootstrap.servers']}") from None
            raise
        missing = [topic for topic in topics if topic not in known]
        if not missing:
            return
        if time.monotonic() > deadline:
            raise ClientError(no_such_topic(missing[0], known))
        time.sleep(PAUSE_S)


def _options(admin: AdminClient, group: str) -> dict[str, str | None]:
    resource = ConfigResource(ResourceType.GROUP, group)
    entries = admin.describe_configs([resource], request_timeout=REQUEST_S)[resource].result()
    return {name: entry.value for name, entry in entries.items()}


def _set_options(admin: AdminClient, group: str, options: Mapping[str, str]) -> None:
    entries = [ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET) for name, value in options.items()]
    resource = ConfigResource(ResourceType.GROUP, group, incremental_configs=entries)
    admin.incremental_alter_configs([resource], request_timeout=REQUEST_S)[resource].result()
