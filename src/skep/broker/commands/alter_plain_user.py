"""The command ``alter_plain_user``: sets or removes the password with which a user logs in by PLAIN.

The client sends a scrypt hash, made by ``wire/sasl/password_hash.py``, so the password does not travel. Kafka's
AlterUserScramCredentials cannot do this: from a password salted for SCRAM no other hash can be made.

Arguments
    ``user``; ``hash``: an object with ``n``, ``r``, ``p``, ``salt`` and ``hash``, or null to remove the password.

Refusals
    UNACCEPTABLE_CREDENTIAL: the name, or a hash of another form or with other parameters than Skep's.
    RESOURCE_NOT_FOUND: there is no password to remove.
"""

from collections.abc import Mapping
from typing import Any

from skep.base.errors import ErrorCode, KafkaError
from skep.broker.commands.command import Argument, Command, Subject, text
from skep.broker.services import Services
from skep.security.users import alter_user, mechanisms_of
from skep.wire.sasl.password_hash import password_hash_of
from skep.wire.sasl.plain import PLAIN


async def _alter(services: Services, arguments: Mapping[str, Any]) -> dict[str, str]:
    fields = arguments["hash"]
    if fields is not None:
        try:
            fields = password_hash_of(fields).fields()
        except ValueError as error:
            raise KafkaError(ErrorCode.unacceptable_credential, str(error)) from None
    await alter_user(services.catalog, arguments["user"], {PLAIN: fields})
    return {"user": arguments["user"]}


def _user(services: Services, arguments: Mapping[str, Any]) -> Subject:
    return Subject("user", arguments["user"], {"mechanisms": mechanisms_of(services.catalog.image, arguments["user"])})


COMMAND = Command(
    _alter,
    {
        "user": text(most=255),
        "hash": Argument(lambda value: value is None or isinstance(value, dict), "an object, or null"),
    },
    _user,
)
