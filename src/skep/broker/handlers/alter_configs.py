"""AlterConfigs (API 33), versions 0 to 2.

Behaviour
    Replaces all overrides of a topic, of a group, of this broker, or (with the empty name) of all brokers: an override
    that is not named is removed. IncrementalAlterConfigs changes single options. ``validate_only`` checks the request
    and changes nothing.

    A broker keeps values for options that Kafka changes at run time and Skep does not use. They have no effect.

Versions
    1 changes nothing here (quotas).
    2 is flexible.

Refusals, per resource, in order
    INVALID_REQUEST: the resource twice, another broker, another type of resource; INVALID_TOPIC_EXCEPTION,
    UNKNOWN_TOPIC_OR_PARTITION; INVALID_REQUEST: an option twice or without a value; INVALID_CONFIG: an unknown
    option, a bad value for a topic or a group; INVALID_REQUEST: a bad value for a broker, an option that is read at
    start only. INVALID_REQUEST also for more than 1,000 configs of one resource.
"""

from typing import TYPE_CHECKING

from skep.base.errors import ErrorCode
from skep.broker.config import config_changes
from skep.broker.config.config_changes import Target
from skep.broker.config.config_entries import texts_in
from skep.broker.request import Request
from skep.broker.services import Services
from skep.metadata.catalog import Edit
from skep.wire.codec import Body

if TYPE_CHECKING:
    from skep.wire.entities.request_types import AlterConfigsRequest


async def handle(services: Services, request: "Request[AlterConfigsRequest]") -> Body:
    return await config_changes.alter_configs(services, request, request.body, _replacement)


def _replacement(target: Target, resource: "AlterConfigsRequest.Resource") -> Edit:
    texts = texts_in(resource.configs, null_is=ErrorCode.invalid_request)
    overrides = {name: target.checked(name, text) for name, text in texts.items()}
    return lambda _: overrides


def refuse(request: "Request[AlterConfigsRequest]", code: ErrorCode) -> Body:
    return config_changes.refuse(request.body, code)
