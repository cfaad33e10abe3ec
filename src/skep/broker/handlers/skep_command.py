"""SkepCommand (API 20000), version 0.

Behaviour
    Skep's own API, for ``skep queues``, for Skep's functions in Python and between brokers: what Kafka's protocol has
    no message for. A request has the name of a command and a JSON object with its arguments, a response an error code,
    a message and JSON. It is not advertised. Apache Kafka closes the connection that it arrives on.

    ``alter_plain_user``: sets or removes the password with which a user logs in by PLAIN.
    ``commands``: the commands of this broker and their arguments.
    ``delay``: when a record of a share group is delivered again. For the leader of the partition.
    ``end_members``: members of a share group were fenced. For brokers.
    ``deliveries``: what a share group has in flight of a partition. For the leader of the partition.
    ``plain_users``: the users that have such a password.
    ``renew``: a member goes on with records that it holds. For the leader of the partition.
    ``check_access``: whether a principal may do something, and which rule decides. For any broker.
    ``topic_needs``: how far the groups that this broker coordinates are in topics. Between brokers.
    ``reopen``: opens finished records of a partition again for a share group. For the leader of the partition.

Versions
    0 is the only one. A new command, or a new argument of one, adds no version: ``commands`` lists what a broker has.

Refusals
    UNSUPPORTED_VERSION: no such command.
    INVALID_REQUEST: more than 65,536 bytes, no JSON object, an argument that is missing, unknown or of another kind.
    UNKNOWN_TOPIC_OR_PARTITION, INCONSISTENT_TOPIC_ID, NOT_LEADER_OR_FOLLOWER of a command about a partition.
    INVALID_RECORD_STATE: the record is in no state in which the command has an effect.
"""

import json
from collections.abc import Awaitable, Mapping
from typing import TYPE_CHECKING, Any

from skep.base.errors import ErrorCode, KafkaError
from skep.broker.commands import (
    alter_plain_user,
    check_access,
    delay,
    deliveries,
    end_members,
    plain_users,
    renew,
    reopen,
    topic_needs,
)
from skep.broker.commands.command import Command, checked_arguments
from skep.broker.permissions import check_command
from skep.broker.refusals import RESPONSE_ERRORS, code_of, message_of
from skep.broker.request import Request
from skep.broker.services import Services
from skep.wire.codec import Body

if TYPE_CHECKING:
    from skep.wire.entities.request_types import SkepCommandRequest


def _commands(_services: Services, _arguments: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    return {
        name: {argument_name: argument.expected for argument_name, argument in command.arguments.items()}
        for name, command in COMMANDS.items()
    }


COMMANDS: dict[str, Command] = {
    "alter_plain_user": alter_plain_user.COMMAND,
    "check_access": check_access.COMMAND,
    "commands": Command(_commands, {}),
    "delay": delay.COMMAND,
    "deliveries": deliveries.COMMAND,
    "end_members": end_members.COMMAND,
    "plain_users": plain_users.COMMAND,
    "renew": renew.COMMAND,
    "topic_needs": topic_needs.COMMAND,
    "reopen": reopen.COMMAND,
}


async def handle(services: Services, request: "Request[SkepCommandRequest]") -> Body:
    try:
        name = request.body.command
        command = COMMANDS.get(name)
        if command is None:
            raise KafkaError(
                ErrorCode.unsupported_version,
                f"this broker has no command {name[:100]!r}; it has {', '.join(COMMANDS)}",
            )
        arguments = checked_arguments(name, command, request.body.arguments)
        check_command(request, name, arguments)
        before = None if command.subject is None else command.subject(services, arguments)
        result = command.run(services, arguments)
        if isinstance(result, Awaitable):
            result = await result
        if command.subject is not None and before is not None:
            after = command.subject(services, arguments)
            # The same value may stand for another one that is not shown, as a password.
            services.security.audit.changed(
                request, after.what, after.name, before.value, {**after.value, "altered": [name]}
            )
    except RESPONSE_ERRORS as error:
        return _refused(code_of(error), message_of(error))
    return {"error_code": ErrorCode.none, "error_message": None, "result": json.dumps(result).encode()}


def refuse(request: "Request[SkepCommandRequest]", code: ErrorCode) -> Body:
    return _refused(code, code.name)


def _refused(code: ErrorCode, message: str) -> dict[str, Any]:
    return {"error_code": code, "error_message": message, "result": None}
