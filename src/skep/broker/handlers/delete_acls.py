"""DeleteAcls (API 31), versions 1 to 3.

Behaviour
    Deletes the ACLs that match filters, as DescribeAcls has them, and returns them for each filter. One that matches
    two filters is in both results.

Versions
    1: pattern types (KIP-290).
    2 is flexible.
    3 changes nothing here (the resource type USER).

Refusals of all filters
    Not authorized; SECURITY_DISABLED without an authorizer.
Refusals per filter
    INVALID_REQUEST: an unknown number.
Refusals per ACL
    Those of the metadata store: the ACL may still exist.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from skep.base.errors import ErrorCode, KafkaError
from skep.base.loop.slicer import Work
from skep.broker.acl_numbers import authorizer_of, fields_of_rule, filter_of
from skep.broker.refusals import code_of, message_of
from skep.broker.request import Request
from skep.broker.services import Services
from skep.security.acls.acl import Acl
from skep.security.acls.acl_changes import AclChanges, Failure
from skep.security.acls.acl_index import AclIndex
from skep.wire.codec import Body
from skep.wire.lazy_array import LazyArray

if TYPE_CHECKING:
    from skep.wire.entities.request_types import DeleteAclsRequest

ACLS_AT_ONCE = 100
_AUDITED = "acls"


async def handle(services: Services, request: "Request[DeleteAclsRequest]") -> Body:
    filters = request.body.filters
    try:
        authorizer = authorizer_of(services)
    except KafkaError as error:
        return {"filter_results": [_refused(error.code, message_of(error))] * len(filters)}
    found = [await services.slicer.finish(_matches(authorizer.index, one)) for one in filters]
    changes = AclChanges(
        services.catalog,
        authorizer,
        services.config.security,
        lambda name, old, new: services.security.audit.changed(request, _AUDITED, name, old, new),
    )
    results = await changes.delete(acl for acls in found if not isinstance(acls, KafkaError) for acl in acls)
    return {"filter_results": [_result(acls, results) for acls in found]}


def _matches(index: AclIndex, fields: "DeleteAclsRequest.Filter") -> Work[list[Acl] | KafkaError]:
    try:
        wanted = filter_of(fields)
    except KafkaError as error:
        return error
    found = []
    for number, acl in enumerate(index.acls(wanted)):
        found.append(acl)
        if not number % ACLS_AT_ONCE:
            yield
    return found


def _result(acls: Sequence[Acl] | KafkaError, results: Mapping[Acl, Failure | None]) -> dict[str, Any]:
    if isinstance(acls, KafkaError):
        return _refused(acls.code, message_of(acls))
    matching = LazyArray(acls, lambda acl: _deleted(acl, results[acl]))
    return {"error_code": ErrorCode.none, "error_message": None, "matching_acls": matching}


def _deleted(acl: Acl, failure: Failure | None) -> dict[str, Any]:
    return {
        "error_code": ErrorCode.none if failure is None else code_of(failure),
        "error_message": None if failure is None else message_of(failure),
        "resource_type": acl.pattern.type.value,
        "resource_name": acl.pattern.name,
        "pattern_type": acl.pattern.pattern_type.value,
        **fields_of_rule(acl.rule),
    }


def _refused(code: ErrorCode, message: str | None) -> dict[str, Any]:
    return {"error_code": code, "error_message": message, "matching_acls": []}


def refuse(request: "Request[DeleteAclsRequest]", code: ErrorCode) -> Body:
    return {"filter_results": LazyArray(request.body.filters, lambda _: _refused(code, None))}
