"""AlterClientQuotas (API 49), versions 0 and 1.

Behaviour
    Sets and removes quotas of users, client ids, both together, or addresses. The entities need not exist. What is
    removed and was not set is no error. Each entity of the request is changed as a whole or not at all, and on its own.
    ``validate_only`` checks the request and changes nothing.

    A quota for a host name is one for each of the addresses that the name has now.

    All brokers apply the change as soon as they see it. Clients that are throttled at that time are not any more, until
    their next requests.

Versions
    1 is flexible.

Refusals, per entity
    INVALID_REQUEST: no entity, an unknown type or one twice, an empty name, an address together with another type, a
    host name without an address, the same entity twice; a quota twice or one that the entity cannot have, a value that
    is not above 0, too large, or has a fraction where there is none.
"""

import asyncio
import socket
from typing import TYPE_CHECKING, Any

from skep.base.errors import ErrorCode, KafkaError
from skep.broker.refusals import RESPONSE_ERRORS, code_of, message_of
from skep.broker.request import Request
from skep.broker.services import Services
from skep.metadata.cluster_image import QUOTAS, Fields
from skep.security.quotas.entities import IP, changed, checked_changes, checked_entity, entity_name, values_of
from skep.security.quotas.quotas import canonical_address
from skep.wire.codec import Body
from skep.wire.lazy_array import LazyArray

if TYPE_CHECKING:
    from skep.wire.entities.request_types import AlterClientQuotasRequest


async def handle(services: Services, request: "Request[AlterClientQuotasRequest]") -> Body:
    seen: set[str] = set()
    entries = []
    for entry in request.body.entries:
        await asyncio.sleep(0)  # a request may name very many entities; others are served in between
        code, message = ErrorCode.none, None
        try:
            await _alter(services, request, entry, seen)
        except RESPONSE_ERRORS as error:
            code, message = code_of(error), message_of(error)
        entries.append(_response(entry, code, message))
    return {"entries": entries}


async def _alter(
    services: Services,
    request: "Request[AlterClientQuotasRequest]",
    entry: "AlterClientQuotasRequest.EntryData",
    seen: set[str],
) -> None:
    entity = checked_entity((one.entity_type, one.entity_name) for one in entry.entity)
    changes = checked_changes(entity, ((op.key, None if op.remove else op.value) for op in entry.ops))
    name = entity_name(entity)
    if name in seen:
        raise KafkaError(ErrorCode.invalid_request, f"Ignoring duplicate entity {name}")
    seen.add(name)
    sets_something = any(value is not None for value in changes.values())
    addresses = await _addresses(entity.get(IP)) if sets_something else ()
    if request.body.validate_only:
        return
    before: Fields | None = None

    def edit(fields: Fields | None) -> Fields | None:
        nonlocal before
        before = fields
        return changed(fields, changes, addresses)

    after = await services.catalog.alter_entry(QUOTAS, name, edit)
    services.security.audit.changed(request, "quota", name, dict(values_of(before or {})), dict(values_of(after or {})))


async def _addresses(host: str | None) -> tuple[str, ...]:
    """Returns the addresses of a host name; none for an address, or the default."""
    if host is None:
        return ()
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        raise KafkaError(ErrorCode.invalid_request, f"{host} is not a valid IP or resolvable host.") from None
    addresses = {canonical_address(str(one[4][0])) for one in found}
    return () if addresses == {canonical_address(host)} else tuple(addresses)


def _response(entry: "AlterClientQuotasRequest.EntryData", code: ErrorCode, message: str | None) -> dict[str, Any]:
    entity = [{"entity_type": one.entity_type, "entity_name": one.entity_name} for one in entry.entity]
    return {"error_code": code, "error_message": message, "entity": entity}


def refuse(request: "Request[AlterClientQuotasRequest]", code: ErrorCode) -> Body:
    return {"entries": LazyArray(request.body.entries, lambda entry: _response(entry, code, None))}
