"""Changes of the overrides of topics, brokers and groups, shared by AlterConfigs and IncrementalAlterConfigs.

A resource changes as a whole or not at all. A change is a function of the current overrides. The catalog applies it to
the overrides in the store, again after a concurrent write. Logs and the broker get changed configs through the
catalog's ``on_change``.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from skep.base.config.group_config import GROUP_OPTIONS
from skep.base.config.option import Option
from skep.base.errors import ErrorCode, KafkaError
from skep.base.loop.slicer import Work
from skep.broker.config.config_entries import (
    BROKER_OPTIONS,
    BROKER_RESOURCE,
    GROUP_RESOURCE,
    TOPIC_OPTIONS,
    TOPIC_RESOURCE,
    broker_entry,
    check_config,
    check_topic_overrides,
    checked_broker_value,
    checked_topic_value,
    owner_of,
    topic_entries,
    unsupported_resource,
)
from skep.broker.config.group_configs import (
    check_group_name,
    check_group_overrides,
    checked_group_value,
    inherited_by_group,
)
from skep.broker.permissions import check_held_target
from skep.broker.refusals import RESPONSE_ERRORS, code_of, message_of
from skep.broker.request import AnyRequest
from skep.broker.services import Services
from skep.broker.worker.held_topics import HELD_TARGET
from skep.metadata.catalog import Edit
from skep.metadata.topic_names import check_topic_name
from skep.wire.codec import Body
from skep.wire.lazy_array import LazyArray


@dataclass(frozen=True)
class Target:
    """A resource whose overrides can be changed."""

    options: Mapping[str, Option]
    overrides: Mapping[str, str]
    checked: Callable[[str, str], str]
    """Returns the value to store for an option's name and text. Raises KafkaError."""
    inherited: Callable[[str], str]
    """Returns the value of an option without an override."""
    write: Callable[[Edit], Awaitable[object]]
    check_all: Callable[[Mapping[str, str]], None] = lambda overrides: None
    """Raises KafkaError if valid overrides contradict each other."""

    def checked_edit(self, edit: Edit) -> Edit:
        """Returns ``edit`` followed by the check of its result."""

        def edit_and_check(overrides: Mapping[str, str]) -> Mapping[str, str]:
            changed = edit(overrides)
            self.check_all(changed)
            return changed

        return edit_and_check


class Resource(Protocol):
    """A resource of AlterConfigs or IncrementalAlterConfigs. How its configs are to change is up to the API."""

    @property
    def resource_type(self) -> int: ...

    @property
    def resource_name(self) -> str: ...


R = TypeVar("R", bound=Resource)
R_co = TypeVar("R_co", bound=Resource, covariant=True)


class AlterBody(Protocol[R_co]):
    @property
    def resources(self) -> Sequence[R_co]: ...

    @property
    def validate_only(self) -> bool: ...


_AUDITED = {TOPIC_RESOURCE: "config of topic", GROUP_RESOURCE: "config of group"}
MakeEdit = Callable[[Target, R], Edit]
"""Makes the edit that a resource of a request wants. Raises KafkaError if the request is invalid."""


async def alter_configs(services: Services, request: AnyRequest, body: AlterBody[R], make_edit: MakeEdit[R]) -> Body:
    resources = body.resources
    twice = await services.slicer.finish(_named_twice(resources))
    responses = []
    for resource in resources:
        code, message = ErrorCode.none, None
        await asyncio.sleep(0)  # a request may name very many resources; others are served in between
        try:
            if (resource.resource_type, resource.resource_name) in twice:
                raise KafkaError(ErrorCode.invalid_request, "Each resource must appear at most once.")
            check_config(request, resource.resource_type, resource.resource_name)
            target = _target(services, request, resource)
            edit = target.checked_edit(make_edit(target, resource))
            if body.validate_only:
                edit(target.overrides)
            else:
                await _write_and_tell(services, request, target, resource, edit)
        except RESPONSE_ERRORS as error:
            code, message = code_of(error), message_of(error)
        responses.append(
            {
                "error_code": code,
                "error_message": message,
                "resource_type": resource.resource_type,
                "resource_name": resource.resource_name,
            }
        )
    return {"responses": responses}


async def _write_and_tell(
    services: Services, request: AnyRequest, target: Target, resource: Resource, edit: Edit
) -> None:
    """Writes a change, and tells the audit of it."""
    hidden = {name for name, option in target.options.items() if option.is_sensitive}
    versions: list[dict[str, str | None]] = []

    def edit_and_remember(overrides: Mapping[str, str]) -> Mapping[str, str]:
        changed = edit(overrides)
        versions[:] = [
            {name: None if name in hidden else text for name, text in some.items()} for some in (overrides, changed)
        ]
        return changed

    await target.write(edit_and_remember)
    old, new = versions
    services.security.audit.changed(
        request, _AUDITED.get(resource.resource_type, "config of broker"), resource.resource_name, old, new
    )


def _named_twice(resources: Iterable[Resource]) -> Work[set[tuple[int, str]]]:
    seen: set[tuple[int, str]] = set()
    twice: set[tuple[int, str]] = set()
    for resource in resources:
        name = (resource.resource_type, resource.resource_name)
        (twice if name in seen else seen).add(name)
        yield
    return twice


def _target(services: Services, request: AnyRequest, resource: Resource) -> Target:
    catalog, name = services.catalog, resource.resource_name
    if resource.resource_type == TOPIC_RESOURCE:
        if not name:
            raise KafkaError(ErrorCode.invalid_request, "Default topic resources are not allowed.")
        check_topic_name(name)
        topic = catalog.image.topics.get(name)
        if topic is None:
            raise KafkaError(ErrorCode.unknown_topic_or_partition, f"Topic '{name}' does not exist.")

        def inherited_by_topic(option: str) -> str:
            return next(entry.value for entry in topic_entries(services, {}) if entry.option.name == option)

        def check_overrides(overrides: Mapping[str, str]) -> None:
            held_target = overrides.get(HELD_TARGET)
            if held_target != topic.config.get(HELD_TARGET):
                check_held_target(request, held_target)
            check_topic_overrides(services, name, overrides)

        return Target(
            TOPIC_OPTIONS,
            topic.config,
            checked_topic_value,
            inherited_by_topic,
            lambda edit: catalog.alter_topic_config(name, edit),
            check_overrides,
        )
    if resource.resource_type == BROKER_RESOURCE:
        owner = owner_of(services, name)
        return Target(
            BROKER_OPTIONS,
            catalog.image.broker_config(owner),
            checked_broker_value,
            lambda option: broker_entry(services, BROKER_OPTIONS[option]).value,
            lambda edit: catalog.alter_broker_config(owner, edit),
        )
    if resource.resource_type == GROUP_RESOURCE:
        check_group_name(services, name)
        return Target(
            GROUP_OPTIONS,
            catalog.image.group_config(name),
            checked_group_value,
            lambda option: inherited_by_group(services, option),
            lambda edit: catalog.alter_group_config(name, edit),
            lambda overrides: check_group_overrides(services, overrides),
        )
    raise unsupported_resource(resource.resource_type)


def refuse(body: AlterBody[Resource], code: ErrorCode) -> Body:
    def response(resource: Resource) -> dict[str, Any]:
        return {
            "error_code": code,
            "error_message": None,
            "resource_type": resource.resource_type,
            "resource_name": resource.resource_name,
        }

    return {"responses": LazyArray(body.resources, response)}
