"""DescribeAcls (API 29), versions 1 to 3.

Behaviour
    Returns the ACLs that match a filter, by resource pattern. Null and ANY match everything; the pattern type MATCH
    finds the patterns that concern a resource of the given name: its own, prefixes of it, and ``*``.

Versions
    1: pattern types (KIP-290).
    2 is flexible.
    3 changes nothing here (the resource type USER).

Refusals
    Not authorized; SECURITY_DISABLED without an authorizer; INVALID_REQUEST for an unknown number.
"""

from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any

from skep.base.errors import ErrorCode, KafkaError
from skep.base.loop.slicer import Work
from skep.broker.acl_numbers import authorizer_of, fields_of_rule, filter_of
from skep.broker.refusals import message_of
from skep.broker.request import Request
from skep.broker.services import Services
from skep.security.acls.acl import AclFilter, ResourcePattern
from skep.security.acls.acl_index import AclIndex
from skep.wire.codec import Body

if TYPE_CHECKING:
    from skep.wire.entities.request_types import DescribeAclsRequest

ACLS_AT_ONCE = 100


def handle(services: Services, request: "Request[DescribeAclsRequest]") -> Body | Awaitable[Body]:
    try:
        index, wanted = authorizer_of(services).index, filter_of(request.body)
    except KafkaError as error:
        return _refused(error.code, message_of(error))
    return services.slicer.run(_described(index, wanted))


def _described(index: AclIndex, wanted: AclFilter) -> Work[Body]:
    resources: dict[ResourcePattern, list[dict[str, Any]]] = {}
    for number, acl in enumerate(index.acls(wanted)):
        resources.setdefault(acl.pattern, []).append(fields_of_rule(acl.rule))
        if not number % ACLS_AT_ONCE:
            yield
    return {
        "error_code": ErrorCode.none,
        "error_message": None,
        "resources": [
            {
                "resource_type": pattern.type.value,
                "resource_name": pattern.name,
                "pattern_type": pattern.pattern_type.value,
                "acls": acls,
            }
            for pattern, acls in resources.items()
        ],
    }


def _refused(code: ErrorCode, message: str | None) -> Body:
    return {"error_code": code, "error_message": message, "resources": []}


def refuse(request: "Request[DescribeAclsRequest]", code: ErrorCode) -> Body:
    return _refused(code, None)
