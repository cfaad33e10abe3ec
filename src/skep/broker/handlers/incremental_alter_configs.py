"""IncrementalAlterConfigs (API 44), versions 0 and 1 (KIP-339).

Behaviour
    Changes single options of a topic, of a group, of this broker, or (with the empty name) of all brokers. Other
    options stay unchanged. All operations of a resource are applied, or none.

    =============  ==========================================================================================
    0 SET          sets the option to the value
    1 DELETE       resets the option to its default; also one without an override, or one that is unknown
    2 APPEND       adds values to a list, except those that are in it
    3 SUBTRACT     removes values from a list; those that are not in it are ignored
    =============  ==========================================================================================

    A list without an override starts from the value in force. ``validate_only`` checks the request and changes nothing.

Versions
    1 is flexible.

Refusals, per resource, in order
    As in AlterConfigs, except that a DELETE needs no value; INVALID_REQUEST: an unknown operation; INVALID_CONFIG:
    APPEND or SUBTRACT to an option that is not a list.
"""

import enum
from collections.abc import Mapping
from typing import TYPE_CHECKING

from skep.base.config.option import OptionType
from skep.base.errors import ErrorCode, KafkaError
from skep.broker.config import config_changes
from skep.broker.config.config_changes import Target
from skep.broker.config.config_entries import check_count, texts_in
from skep.broker.request import Request
from skep.broker.services import Services
from skep.metadata.catalog import Edit
from skep.wire.codec import Body

if TYPE_CHECKING:
    from skep.wire.entities.request_types import IncrementalAlterConfigsRequest


class Operation(enum.IntEnum):
    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


async def handle(services: Services, request: "Request[IncrementalAlterConfigsRequest]") -> Body:
    return await config_changes.alter_configs(services, request, request.body, _edit)


def _edit(target: Target, resource: "IncrementalAlterConfigsRequest.AlterConfigsResource") -> Edit:
    operations = {config.name: _operation(config) for config in check_count(resource.configs)}
    texts = texts_in(resource.configs, null_is=ErrorCode.invalid_request, may_be_null=_deleted(operations))

    def edit(overrides: Mapping[str, str]) -> Mapping[str, str]:
        changed = dict(overrides)
        for name, operation in operations.items():
            if operation is Operation.DELETE:
                changed.pop(name, None)
            elif operation is Operation.SET:
                changed[name] = target.checked(name, texts[name])
            else:
                changed[name] = target.checked(name, _list_after(target, operation, name, overrides, texts[name]))
        return changed

    return edit


def _operation(config: "IncrementalAlterConfigsRequest.AlterableConfig") -> Operation:
    try:
        return Operation(config.config_operation)
    except ValueError:
        raise KafkaError(
            ErrorCode.invalid_request, f"Unknown operations type {config.config_operation} for {config.name}"
        ) from None


def _deleted(operations: Mapping[str, Operation]) -> set[str]:
    return {name for name, operation in operations.items() if operation is Operation.DELETE}


def _list_after(target: Target, operation: Operation, name: str, overrides: Mapping[str, str], text: str) -> str:
    option = target.options.get(name)
    if option is not None and option.type is not OptionType.LIST:
        raise KafkaError(
            ErrorCode.invalid_config, f"Can't {operation.name} to key {name} because its type is not LIST."
        )
    if option is None:
        return text  # the check that follows refuses the unknown option
    before = option.parse(overrides[name] if name in overrides else target.inherited(name))
    these = dict.fromkeys(part.strip() for part in text.split(",") if part.strip())
    if operation is Operation.APPEND:
        after = list(dict.fromkeys((*before, *these)))
    else:
        after = [part for part in before if part not in these]
    return ",".join(after)


def refuse(request: "Request[IncrementalAlterConfigsRequest]", code: ErrorCode) -> Body:
    return config_changes.refuse(request.body, code)
