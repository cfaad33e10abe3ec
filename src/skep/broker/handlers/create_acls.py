"""CreateAcls (API 30), versions 1 to 3.

Behaviour
    Adds ACLs. One that exists already is no error. The response is sent when they are stored and hold on this broker;
    other brokers follow with the metadata. A host is stored in the form that clients' addresses have:
    ``2001:DB8:0::1`` as ``2001:db8::1``, ``::ffff:10.0.0.1`` as ``10.0.0.1``.

Versions
    1: pattern types (KIP-290).
    2 is flexible.
    3 changes nothing here (the resource type USER).

Refusals of all ACLs
    Not authorized; SECURITY_DISABLED without an authorizer.
Refusals per ACL
    INVALID_REQUEST: an unknown number; ANY or MATCH, which are for filters; an empty or too long name, a CLUSTER with
    another name than ``kafka-cluster``; a principal without a type; a host with ``/`` or ``:`` that is no range of
    addresses or no address.
    POLICY_VIOLATION past ``skep.max.acls`` or ``skep.max.acls.per.resource``.
"""

from typing import TYPE_CHECKING, Any

from skep.base.errors import ErrorCode, KafkaError
from skep.broker.acl_numbers import authorizer_of, known
from skep.broker.refusals import code_of, message_of
from skep.broker.request import Request
from skep.broker.services import Services
from skep.security.acls.acl import Acl, ResourcePattern, Rule, canonical_host
from skep.security.acls.acl_changes import AclChanges
from skep.security.operations import Operation, PatternType, Permission, ResourceType
from skep.wire.codec import Body
from skep.wire.lazy_array import LazyArray

if TYPE_CHECKING:
    from skep.wire.entities.request_types import CreateAclsRequest

_AUDITED = "acls"


async def handle(services: Services, request: "Request[CreateAclsRequest]") -> Body:
    creations = request.body.creations
    try:
        authorizer = authorizer_of(services)
    except KafkaError as error:
        return {"results": [_result(error)] * len(creations)}
    acls = [_acl_or_refusal(one) for one in creations]
    changes = AclChanges(
        services.catalog,
        authorizer,
        services.config.security,
        lambda name, old, new: services.security.audit.changed(request, _AUDITED, name, old, new),
    )
    results = await changes.create(acl for acl in acls if isinstance(acl, Acl))
    return {"results": [_result(acl if isinstance(acl, KafkaError) else results[acl]) for acl in acls]}


def _acl_or_refusal(one: "CreateAclsRequest.AclCreation") -> Acl | KafkaError:
    try:
        pattern_type = known(PatternType, one.resource_pattern_type)
        operation, permission = known(Operation, one.operation), known(Permission, one.permission_type)
        return Acl(
            ResourcePattern(known(ResourceType, one.resource_type), one.resource_name, pattern_type),
            Rule(one.principal, canonical_host(one.host), operation, permission),
        )
    except KafkaError as error:
        return error


def _result(error: Exception | None) -> dict[str, Any]:
    if error is None:
        return {"error_code": ErrorCode.none, "error_message": None}
    return {"error_code": code_of(error), "error_message": message_of(error)}


def refuse(request: "Request[CreateAclsRequest]", code: ErrorCode) -> Body:
    return {"results": LazyArray(request.body.creations, lambda _: {"error_code": code, "error_message": None})}
