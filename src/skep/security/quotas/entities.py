"""Whom a quota is for, and which quotas there are: the words of Kafka's client quotas.

An entity is a user, a client id, both, or an address; each by name or as the default of those without a quota of their
own. It is stored as an entry of kind QUOTAS, whose name is the entity:

    user=alice             client-id=app                 ip=10.0.0.7
    user=alice;client-id   user;client-id=app            user

A type without a name is the default. Names are percent-encoded. An address may be given as a host name: the entry then
has the addresses it had when the quota was set.
"""

import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

from skep.base.errors import ErrorCode, KafkaError

USER, CLIENT_ID, IP = ENTITY_TYPES = ("user", "client-id", "ip")

PRODUCER_BYTE_RATE = "producer_byte_rate"
CONSUMER_BYTE_RATE = "consumer_byte_rate"
REQUEST_PERCENTAGE = "request_percentage"
CONTROLLER_MUTATION_RATE = "controller_mutation_rate"
CONNECTION_CREATION_RATE = "connection_creation_rate"


class _Key(NamedTuple):
    """A quota: its largest value, and whether it may have a fraction."""

    largest: float
    is_whole: bool


CLIENT_KEYS: Mapping[str, _Key] = {
    PRODUCER_BYTE_RATE: _Key(2**63 - 1, True),
    CONSUMER_BYTE_RATE: _Key(2**63 - 1, True),
    REQUEST_PERCENTAGE: _Key(math.inf, False),
    CONTROLLER_MUTATION_RATE: _Key(math.inf, False),
}
IP_KEYS: Mapping[str, _Key] = {CONNECTION_CREATION_RATE: _Key(2**31 - 1, True)}

Entity = Mapping[str, str | None]
"""Names by entity type; None is the default."""

_WHOLE = 1e-6
"""How far a value may be from a whole number and still count as one, as in Kafka."""


def entity_name(entity: Entity) -> str:
    """Returns the name of the entry of this entity."""
    return ";".join(
        kind if entity[kind] is None else f"{kind}={quote(entity[kind] or '', safe='')}"
        for kind in ENTITY_TYPES
        if kind in entity
    )


def entity_of(name: str) -> dict[str, str | None]:
    """Returns what ``entity_name`` was called with."""
    parts = (part.partition("=") for part in name.split(";"))
    return {kind: unquote(quoted) if equals else None for kind, equals, quoted in parts}


def checked_entity(pairs: Iterable[tuple[str, str | None]]) -> dict[str, str | None]:
    """Raises INVALID_REQUEST for an entity that cannot have quotas. Whether an address exists is not checked here."""
    entity: dict[str, str | None] = {}
    for kind, name in pairs:
        if kind in entity:
            raise _invalid(f"Invalid client quota entity, duplicate entity entry {kind}")
        if kind not in ENTITY_TYPES:
            raise _invalid(f"Unhandled client quota entity type: {kind}; there are {', '.join(ENTITY_TYPES)}")
        if name == "":
            raise _invalid(f"Empty {kind} not supported")
        entity[kind] = name
    if not entity:
        raise _invalid("Invalid empty client quota entity")
    if IP in entity and len(entity) > 1:
        raise _invalid("Invalid quota entity combination, ip cannot be combined with user or client-id")
    return entity


def checked_changes(entity: Entity, changes: Iterable[tuple[str, float | None]]) -> dict[str, float | None]:
    """Raises INVALID_REQUEST for a quota that the entity cannot have, or a value that it cannot have."""
    keys = IP_KEYS if IP in entity else CLIENT_KEYS
    checked: dict[str, float | None] = {}
    for key, value in changes:
        if key in checked:
            raise _invalid(f"Duplicate quota key {key}")
        if value is not None:
            if key not in keys:
                raise _invalid(f"Invalid configuration key {key}; this entity can have {', '.join(keys)}")
            _check_value(key, value, keys[key])
        checked[key] = value
    return checked


def _check_value(key: str, value: float, rule: _Key) -> None:
    if not math.isfinite(value) or value <= 0:
        raise _invalid(f"Quota {key} must be greater than 0, not {value:g}")
    if value > rule.largest:
        raise _invalid(f"Proposed value for {key} is too large: {value:g} is more than {rule.largest:g}")
    if rule.is_whole and abs(value - round(value)) > _WHOLE:
        raise _invalid(f"{key} cannot be a fractional value, such as {value:g}")


def _invalid(message: str) -> KafkaError:
    return KafkaError(ErrorCode.invalid_request, message)


def changed(
    before: Mapping[str, Any] | None, changes: Mapping[str, float | None], addresses: Iterable[str] = ()
) -> dict[str, Any] | None:
    """Returns the fields of an entry after ``changes``, of which None removes a quota; None if none are left."""
    values = {**values_of(before or {}), **changes}
    left = {key: float(value) for key, value in values.items() if value is not None}
    if not left:
        return None
    fields: dict[str, Any] = {"values": left}
    if found := sorted(addresses):
        fields["addresses"] = found
    return fields


def values_of(fields: Mapping[str, Any]) -> Mapping[str, float]:
    """Returns the quotas in the fields of an entry."""
    values: Mapping[str, float] = fields.get("values", {})
    return values


def addresses_of(fields: Mapping[str, Any]) -> Iterable[str]:
    """Returns the addresses in the fields of the entry of a host name."""
    addresses: Iterable[str] = fields.get("addresses", ())
    return addresses
