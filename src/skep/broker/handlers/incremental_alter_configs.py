"""IncrementalAlterConfigs (API 44), versions 0 and 1 (KIP-339).

Behaviour
    Options of a topic, of a group, of this broker, or (with the empty name) of all brokers are changed one by one; the
    others stay.
    All operations of a resource take place or none.

    =============  ==========================================================================================
    0 SET          the option gets this value
    1 DELETE       it goes back to its default; also one that had no override, or that nobody knows any more
    2 APPEND       of a list: these are added, unless they are in it
    3 SUBTRACT     of a list: these are taken out; those that are not in it are passed over
    =============  ==========================================================================================

    A list without an override begins as what is in force. With ``validate_only`` everything is checked and nothing
    changed.

Refusals, per resource, in order
    As in AlterConfigs, a DELETE needing no value; INVALID_REQUEST for an unknown operation; INVALID_CONFIG for APPEND
    and SUBTRACT to an option that is no list.
"""

import enum
from collections.abc import Mapping
from typing import Any

from skep.base.config.option import OptionType
from skep.base.errors import ErrorCode, KafkaError
from skep.broker.config import config_changes
from skep.broker.config.config_changes import Target
from skep.broker.config.config_entries import check_count, texts_in
from skep.broker.request import Request
from skep.broker.services import Services
from skep.metadata.catalog import Edit
from skep.wire.codec import Body


class Operation(enum.IntEnum):
    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


async def handle(services: Services, request: Request) -> Body:
    return await config_changes.alter_configs(services, request, _edit)


def _edit(target: Target, resource: Any) -> Edit:
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


def _operation(config: Any) -> Operation:
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
        return text  # the check that follows says that there is no such option
    before = option.parse(overrides[name] if name in overrides else target.inherited(name))
    these = dict.fromkeys(part.strip() for part in text.split(",") if part.strip())
    if operation is Operation.APPEND:
        after = list(dict.fromkeys((*before, *these)))
    else:
        after = [part for part in before if part not in these]
    return ",".join(after)


def refuse(request: Request, code: ErrorCode) -> Body:
    return config_changes.refuse(request, code)
