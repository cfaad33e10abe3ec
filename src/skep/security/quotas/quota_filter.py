"""Which entities a DescribeClientQuotas request asks for."""

import enum
from collections.abc import Iterable
from typing import NamedTuple

from skep.base.errors import ErrorCode, KafkaError
from skep.security.quotas.entities import ENTITY_TYPES, IP, Entity


class Match(enum.IntEnum):
    """How a component matches the name of an entity."""

    EXACT = 0
    DEFAULT = 1
    ANY = 2


class Component(NamedTuple):
    """One condition of a filter. ``name`` is set for EXACT only."""

    kind: str
    match: int
    name: str | None = None

    def matches(self, entity: Entity) -> bool:
        return self.kind in entity and (self.match == Match.ANY or entity[self.kind] == self.name)


class QuotaFilter(NamedTuple):
    """All components must match. A strict filter matches no entity of more types than it names."""

    components: tuple[Component, ...]
    is_strict: bool

    def matches(self, entity: Entity) -> bool:
        if self.is_strict and len(entity) != len(self.components):
            return False
        return all(component.matches(entity) for component in self.components)


def checked_filter(components: Iterable[Component], *, is_strict: bool) -> QuotaFilter:
    """Raises INVALID_REQUEST as Kafka does; UNSUPPORTED_VERSION for a type of entity that it does not know either."""
    checked: dict[str, Component] = {}
    for component in components:
        kind, match, name = component
        if not kind:
            raise _invalid("Invalid empty entity type.")
        if kind in checked:
            raise _invalid(f"Entity type {kind} cannot appear more than once in the filter.")
        if kind not in ENTITY_TYPES:
            raise KafkaError(ErrorCode.unsupported_version, f"Unsupported entity type {kind}")
        if match not in tuple(Match):
            raise _invalid(f"Unknown match type {match}")
        if match == Match.EXACT and name is None:
            raise _invalid("Request specified an exact match, but set match string to null.")
        if match != Match.EXACT and name is not None:
            raise _invalid(f"Request specified match type {match}, but also specified a match string.")
        checked[kind] = component
    if IP in checked and len(checked) > 1:
        raise _invalid("Invalid entity filter component combination. ip cannot be used with user or client-id.")
    return QuotaFilter(tuple(checked.values()), is_strict)


def _invalid(message: str) -> KafkaError:
    return KafkaError(ErrorCode.invalid_request, message)
