"""ApiVersions (API 18), versions 0 to 4.

Behaviour
    Lists every API served with its versions. For a version that we do not know the answer is in version 0 with
    UNSUPPORTED_VERSION and the list, so that the client can choose and ask again (KIP-511).

    Version 3 brings the client's name and version; one that is not a plain name is INVALID_REQUEST, as in Kafka.

Left out
    Features: none is finalised, so none is listed. (Below version 4 one with a minimum of 0 must never be:
    KAFKA-17011.)
"""

import re

from skep.base.errors import ErrorCode
from skep.broker.request import Request
from skep.broker.services import Services
from skep.wire.apis import ADVERTISED_NEWEST, ADVERTISED_OLDEST, API_VERSIONS, SERVED
from skep.wire.codec import Body

HAS_CLIENT_SOFTWARE = 3
_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9.\-]*[a-zA-Z0-9])?")


def handle(services: Services, request: Request) -> Body:
    if not API_VERSIONS.serves(request.version):
        return refuse(request, ErrorCode.unsupported_version)
    if request.version >= HAS_CLIENT_SOFTWARE:
        software = (request.body.client_software_name, request.body.client_software_version)
        if not all(_SOFTWARE.fullmatch(text) for text in software):
            return refuse(request, ErrorCode.invalid_request)
    return refuse(request, ErrorCode.none)


def refuse(request: Request, code: ErrorCode) -> Body:
    return {"error_code": code, "api_keys": _API_KEYS, "finalized_features_epoch": -1}


_API_KEYS = [
    {
        "api_key": api.key,
        "min_version": ADVERTISED_OLDEST.get(api.key, api.oldest),
        "max_version": ADVERTISED_NEWEST.get(api.key, api.newest),
    }
    for api in sorted(SERVED.values())
]
