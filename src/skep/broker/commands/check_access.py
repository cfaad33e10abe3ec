"""The command ``check_access``: whether a principal may do something, and which rule decides.

Arguments
    ``principal``: TYPE:NAME; ``host``: the address of the client; ``operation``, ``resource`` (its type) and ``name``,
    in Kafka's words.

Result
    ``allowed``; ``rule``: the ACL or the option that decides; ``enforced``: false if the authorizer only logs.

Refusals
    SECURITY_DISABLED: there is no authorizer.
"""

from collections.abc import Mapping
from typing import Any

from skep.base.errors import OptionError
from skep.broker.acl_numbers import authorizer_of
from skep.broker.commands.command import Argument, Command, text
from skep.broker.services import Services
from skep.security.acls.acl import MAX_TEXT, host_of, invalid
from skep.security.operations import Operation, ResourceType
from skep.security.principal import parse_principal

_OPERATIONS = {one.name.lower(): one for one in Operation if one not in (Operation.ANY, Operation.ALL)}
_RESOURCES = {one.name.lower(): one for one in ResourceType if one is not ResourceType.ANY}


def _check(services: Services, arguments: Mapping[str, Any]) -> dict[str, Any]:
    authorizer = authorizer_of(services)
    try:
        principal = parse_principal(arguments["principal"])
    except OptionError as error:
        raise invalid(str(error)) from None
    operation, resource = _OPERATIONS[arguments["operation"]], _RESOURCES[arguments["resource"]]
    host = host_of(arguments["host"])
    is_allowed, rule = authorizer.decide(principal, host, operation, resource, arguments["name"])
    return {"allowed": is_allowed, "rule": rule, "enforced": not authorizer.only_logs}


def _one_of(names: Mapping[str, Any]) -> Argument:
    return Argument(lambda value: isinstance(value, str) and value in names, f"one of {', '.join(names)}")


COMMAND = Command(
    _check,
    {
        "principal": text(most=MAX_TEXT),
        "host": text(most=MAX_TEXT, default="127.0.0.1"),
        "operation": _one_of(_OPERATIONS),
        "resource": _one_of(_RESOURCES),
        "name": text(most=MAX_TEXT),
    },
)
