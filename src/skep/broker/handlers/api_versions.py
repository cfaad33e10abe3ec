"""ApiVersions (API 18), versions 0 to 4.

Behaviour
    Lists every API that is served to clients, with its versions. The response to an unknown version is in version 0,
    with UNSUPPORTED_VERSION and the list, so that the client can choose a version and ask again (KIP-511).

    A client uses transactions v2 (KIP-890) if the feature ``transaction.version`` is finalised at 2, as it is here.
    ``share.version`` 2: share groups (KIP-932) with dead-letter topics (KIP-1191).

Versions
    1: ``throttle_time_ms``.
    2 changes nothing here (quotas).
    3 is flexible; the client's name and version (KIP-511), and features in the response (KIP-584).
    4 may list features with a minimum of 0, which older versions must never do (KAFKA-17011).

Refusals
    INVALID_REQUEST: a client name or version that is not a plain name, as in Kafka.
"""

import re
from typing import TYPE_CHECKING

from skep.base.errors import ErrorCode
from skep.broker.request import Request
from skep.broker.services import Services
from skep.wire.apis import ADVERTISED_NEWEST, ADVERTISED_OLDEST, NOT_ADVERTISED, SERVED
from skep.wire.codec import Body

if TYPE_CHECKING:
    from skep.wire.entities.request_types import ApiVersionsRequest

HAS_CLIENT_SOFTWARE = 3
ALLOWS_MINIMUM_OF_0 = 4
_FEATURES = {"transaction.version": 2, "share.version": 2}
_SUPPORTED = [{"name": name, "min_version": 0, "max_version": version} for name, version in _FEATURES.items()]
_FINALIZED = [
    {"name": name, "min_version_level": version, "max_version_level": version} for name, version in _FEATURES.items()
]
_FEATURES_EPOCH = 0
"""The features never change while a cluster runs. Clients ignore features of epoch -1."""
_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9.\-]*[a-zA-Z0-9])?")


def handle(services: Services, request: "Request[ApiVersionsRequest | None]") -> Body:
    body = request.body
    if body is None:  # in a version that is not served
        return refuse(request, ErrorCode.unsupported_version)
    if request.version >= HAS_CLIENT_SOFTWARE:
        software = (body.client_software_name, body.client_software_version)
        if not all(_SOFTWARE.fullmatch(text) for text in software):
            return refuse(request, ErrorCode.invalid_request)
    return refuse(request, ErrorCode.none)


def refuse(request: "Request[ApiVersionsRequest | None]", code: ErrorCode) -> Body:
    return {
        "error_code": code,
        "api_keys": _API_KEYS,
        "supported_features": _SUPPORTED if request.version >= ALLOWS_MINIMUM_OF_0 else [],
        "finalized_features_epoch": _FEATURES_EPOCH,
        "finalized_features": _FINALIZED,
    }


_API_KEYS = [
    {
        "api_key": api.key,
        "min_version": ADVERTISED_OLDEST.get(api.key, api.oldest),
        "max_version": ADVERTISED_NEWEST.get(api.key, api.newest),
    }
    for api in sorted(SERVED.values())
    if api.key not in NOT_ADVERTISED
]
