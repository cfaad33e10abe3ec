"""Quotas by request: DescribeClientQuotas and AlterClientQuotas, which confluent-kafka does not have."""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from skep.base.errors import ErrorCode
from skep.cli.failures import CommandError
from skep.cli.skep_client import error_text
from skep.client.cluster_client import ClusterClient
from skep.client.retry import call_with_retries
from skep.security.quotas.entities import ENTITY_TYPES, Entity
from skep.security.quotas.quota_filter import Component, Match
from skep.wire.apis import ALTER_CLIENT_QUOTAS, DESCRIBE_CLIENT_QUOTAS, Api

DEFAULT = "<default>"


class ClientQuota(NamedTuple):
    """The quotas of one entity."""

    entity: Entity
    values: Mapping[str, float]


def describe_quotas(client: ClusterClient, components: Iterable[Component], *, is_strict: bool) -> list[ClientQuota]:
    """Returns the quotas of the entities that match, sorted."""
    asked = [{"entity_type": one.kind, "match_type": one.match, "match": one.name} for one in components]
    response = _ask(client, DESCRIBE_CLIENT_QUOTAS, {"components": asked, "strict": is_strict})
    if response.error_code is not ErrorCode.none:
        raise CommandError(f"cannot list quotas: {response.error_message or error_text(response.error_code)}")
    found = [
        ClientQuota(
            {part.entity_type: part.entity_name for part in entry.entity},
            {value.key: value.value for value in sorted(entry.values, key=lambda value: value.key)},
        )
        for entry in response.entries or ()
    ]
    return sorted(found, key=lambda quota: [(kind in quota.entity, quota.entity.get(kind) or "") for kind in _ORDER])


_ORDER = tuple(reversed(ENTITY_TYPES))
"""Users come before those of client ids alone, and those before addresses."""


def alter_quotas(client: ClusterClient, entity: Entity, changes: Mapping[str, float | None]) -> None:
    """Sets quotas of an entity; None removes one. All of it is done, or nothing. Raises CommandError if refused."""
    entry = {
        "entity": [{"entity_type": kind, "entity_name": name} for kind, name in entity.items()],
        "ops": [{"key": key, "value": value or 0.0, "remove": value is None} for key, value in changes.items()],
    }
    [result] = _ask(client, ALTER_CLIENT_QUOTAS, {"entries": [entry], "validate_only": False}).entries
    if result.error_code is not ErrorCode.none:
        raise CommandError(
            f"cannot alter the quotas of {entity_text(entity)}: {result.error_message or error_text(result.error_code)}"
        )


def _ask(client: ClusterClient, api: Api, body: Mapping[str, Any]) -> Any:
    return call_with_retries(client, "quotas", lambda: client.ask_node(client.nodes()[0], api, body))


def components_of(entity: Entity) -> list[Component]:
    """Returns the filter for quotas of exactly these names and defaults."""
    return [Component(kind, Match.DEFAULT if name is None else Match.EXACT, name) for kind, name in entity.items()]


def entity_text(entity: Entity) -> str:
    """Returns ``user alice, default client-id``."""
    return ", ".join(f"default {kind}" if name is None else f"{kind} {name}" for kind, name in entity.items())
