"""DescribeClientQuotas (API 48), versions 0 and 1.

Behaviour
    Returns the quotas that are set for the entities that match all components of the filter. Without components all
    match. A strict filter leaves out entities of more types than it names: ``user=alice`` does not match the quota of
    alice with one client id. Quotas that apply by default are not returned for others than the default.

Versions
    1 is flexible.

Refusals
    INVALID_REQUEST: no or the same entity type twice, an unknown match type, a name where there must be none or none
    where there must be one, addresses together with users or client ids. UNSUPPORTED_VERSION: an unknown entity type.
"""

from collections.abc import Awaitable
from typing import TYPE_CHECKING

from skep.base.errors import ErrorCode, KafkaError
from skep.base.loop.slicer import Work
from skep.broker.request import Request
from skep.broker.services import Services
from skep.metadata.cluster_image import QUOTAS, ClusterImage
from skep.security.quotas.entities import entity_of, values_of
from skep.security.quotas.quota_filter import Component, QuotaFilter, checked_filter
from skep.wire.codec import Body

if TYPE_CHECKING:
    from skep.wire.entities.request_types import DescribeClientQuotasRequest


def handle(services: Services, request: "Request[DescribeClientQuotasRequest]") -> Body | Awaitable[Body]:
    body = request.body
    asked = (Component(one.entity_type, one.match_type, one.match) for one in body.components)
    try:
        quota_filter = checked_filter(asked, is_strict=body.strict)
    except KafkaError as error:
        return {"error_code": error.code, "error_message": error.detail, "entries": None}
    return services.slicer.run(_described(services.catalog.image, quota_filter))


def _described(image: ClusterImage, quota_filter: QuotaFilter) -> Work[Body]:
    entries = []
    for name, fields in image.entries_of(QUOTAS).items():
        entity = entity_of(name)
        if quota_filter.matches(entity):
            entries.append(
                {
                    "entity": [{"entity_type": kind, "entity_name": one} for kind, one in entity.items()],
                    "values": [{"key": key, "value": value} for key, value in values_of(fields).items()],
                }
            )
        yield
    return {"error_code": ErrorCode.none, "error_message": None, "entries": entries}


def refuse(request: "Request[DescribeClientQuotasRequest]", code: ErrorCode) -> Body:
    return {"error_code": code, "error_message": None, "entries": None}
