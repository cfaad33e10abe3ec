"""DescribeUserScramCredentials (API 50), version 0.

Behaviour
    Returns which SCRAM mechanisms a user has, and with how many iterations. Never a key or a salt. No users, or null,
    means all users that have such a credential.

Versions
    0 is the only one (KIP-554).

Refusals, per user
    DUPLICATE_RESOURCE: the user is named twice; RESOURCE_NOT_FOUND: it has no SCRAM credential. A user that has only a
    password for PLAIN is shown by Skep's own command ``plain_users``.
"""

from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any

from skep.base.errors import ErrorCode
from skep.base.loop.slicer import Work
from skep.broker.refusals import repeated
from skep.broker.request import Request
from skep.broker.services import Services
from skep.metadata.cluster_image import USERS, Fields
from skep.wire.codec import Body
from skep.wire.sasl.scram_keys import SCRAMS

if TYPE_CHECKING:
    from skep.wire.entities.request_types import DescribeUserScramCredentialsRequest


def handle(services: Services, request: "Request[DescribeUserScramCredentialsRequest]") -> Body | Awaitable[Body]:
    return services.slicer.run(_described(services, request))


def _described(services: Services, request: "Request[DescribeUserScramCredentialsRequest]") -> Work[Body]:
    entries = services.catalog.image.entries_of(USERS)
    named = [user.name for user in request.body.users or ()]
    twice = repeated(named)
    results = []
    for name in dict.fromkeys(named) or sorted(name for name, fields in entries.items() if SCRAMS.keys() & fields):
        results.append(_one(name, entries.get(name, {}), is_twice=name in twice))
        yield
    return {"error_code": ErrorCode.none, "error_message": None, "results": results}


def _one(name: str, credentials: Fields, *, is_twice: bool) -> dict[str, Any]:
    infos = [
        {"mechanism": scram.number, "iterations": credentials[scram.name]["iterations"]}
        for scram in SCRAMS.values()
        if scram.name in credentials
    ]
    code, message = ErrorCode.none, None
    if is_twice:
        code = ErrorCode.duplicate_resource
        message = f"Cannot describe SCRAM credentials for the same user twice in a single request: {name}"
    elif not infos:
        code = ErrorCode.resource_not_found
        message = f"Attempt to describe a user credential that does not exist: {name}"
    return {
        "user": name,
        "error_code": code,
        "error_message": None if message is None else message[:1000],
        "credential_infos": infos if code is ErrorCode.none else [],
    }


def refuse(request: "Request[DescribeUserScramCredentialsRequest]", code: ErrorCode) -> Body:
    return {"error_code": code, "error_message": code.name, "results": []}
