"""AlterUserScramCredentials (API 51), version 0.

Behaviour
    Sets and deletes SCRAM credentials. The client sends the salted password, so the broker never sees the password
    itself; it stores two keys that are derived from it (RFC 5802), and not what was sent. All changes of a user are
    made together or not at all. Open connections of a user whose credential was replaced or deleted are closed.

Versions
    0 is the only one (KIP-554).

Refusals, per user
    UNACCEPTABLE_CREDENTIAL: no name, a name of more than 255 bytes or with control characters, iterations outside 4096
    to 16384, no salt; UNSUPPORTED_SASL_MECHANISM; DUPLICATE_RESOURCE: the same mechanism of the user twice;
    RESOURCE_NOT_FOUND: a credential that is to be deleted does not exist.
"""

from typing import TYPE_CHECKING, Any, NamedTuple

from skep.base.errors import ErrorCode, KafkaError
from skep.broker.refusals import RESPONSE_ERRORS, code_of, message_of
from skep.broker.request import Request
from skep.broker.services import Services
from skep.metadata.cluster_image import Fields
from skep.security.users import alter_user, check_name, mechanisms_of, scram_fields
from skep.wire.codec import Body
from skep.wire.sasl.scram_keys import SCRAMS, Scram
from skep.wire.sasl.scram_messages import MIN_ITERATIONS

if TYPE_CHECKING:
    from skep.wire.entities.request_types import AlterUserScramCredentialsRequest

MAX_ITERATIONS = 16_384
MAX_SALT_BYTES = 1024
_BY_NUMBER = {scram.number: scram for scram in SCRAMS.values()}


class _Altered(NamedTuple):
    """What a request changes of one user."""

    deletions: "list[AlterUserScramCredentialsRequest.ScramCredentialDeletion]"
    upsertions: "list[AlterUserScramCredentialsRequest.ScramCredentialUpsertion]"


async def handle(services: Services, request: "Request[AlterUserScramCredentialsRequest]") -> Body:
    results = []
    for name, altered in _by_user(request).items():
        before = mechanisms_of(services.catalog.image, name)
        try:
            changes = _changes(name, altered)
            await alter_user(services.catalog, name, changes)
        except RESPONSE_ERRORS as error:
            results.append(_result(name, code_of(error), message_of(error)))
        else:
            results.append(_result(name, ErrorCode.none, None))
            after = {"mechanisms": mechanisms_of(services.catalog.image, name), "altered": list(changes)}
            services.security.audit.changed(request, "user", name, {"mechanisms": before}, after)
    return {"results": results}


def refuse(request: "Request[AlterUserScramCredentialsRequest]", code: ErrorCode) -> Body:
    return {"results": [_result(name, code, code.name) for name in _by_user(request)]}


def _by_user(request: "Request[AlterUserScramCredentialsRequest]") -> "dict[str, _Altered]":
    by_user: dict[str, _Altered] = {}
    for deletion in request.body.deletions:
        by_user.setdefault(deletion.name, _Altered([], [])).deletions.append(deletion)
    for upsertion in request.body.upsertions:
        by_user.setdefault(upsertion.name, _Altered([], [])).upsertions.append(upsertion)
    return by_user


def _changes(name: str, altered: "_Altered") -> dict[str, Fields | None]:
    check_name(name)
    changes: dict[str, Fields | None] = {}

    def add(scram: Scram, fields: Fields | None) -> None:
        if scram.name in changes:
            raise KafkaError(
                ErrorCode.duplicate_resource, "A user credential cannot be altered twice in the same request"
            )
        changes[scram.name] = fields

    for deletion in altered.deletions:
        add(_scram(deletion.mechanism), None)
    for upsertion in altered.upsertions:
        scram = _scram(upsertion.mechanism)
        _check(upsertion)
        add(scram, scram_fields(scram, bytes(upsertion.salt), upsertion.iterations, bytes(upsertion.salted_password)))
    return changes


def _scram(number: int) -> Scram:
    if number not in _BY_NUMBER:
        raise KafkaError(ErrorCode.unsupported_sasl_mechanism, "Unknown SCRAM mechanism")
    return _BY_NUMBER[number]


def _check(upsertion: "AlterUserScramCredentialsRequest.ScramCredentialUpsertion") -> None:
    if upsertion.iterations < MIN_ITERATIONS:
        raise KafkaError(ErrorCode.unacceptable_credential, f"Too few iterations, at least {MIN_ITERATIONS}")
    if upsertion.iterations > MAX_ITERATIONS:
        raise KafkaError(ErrorCode.unacceptable_credential, f"Too many iterations, at most {MAX_ITERATIONS}")
    if not 0 < len(upsertion.salt) <= MAX_SALT_BYTES or not upsertion.salted_password:
        raise KafkaError(ErrorCode.unacceptable_credential, "The salt or the salted password is empty or too long")


def _result(name: str, code: ErrorCode, message: str | None) -> dict[str, Any]:
    return {"user": name, "error_code": code, "error_message": message}
