"""Fields that Skep's brokers add to messages between them: tagged fields, far from the tags of Kafka (KIP-482).

kio refuses tagged fields that its classes do not have. Encoders, bounds and readers are all made from the class of a
message, so here the class itself gets the fields, and nothing else has to know of them. A broker of another kind skips
them, and a field with its default is left out, so a message that does not need them has the bytes that Kafka writes.
"""

import dataclasses
from typing import Any, get_args

from kio.static.primitive import i32

WRITE_STATE = "WriteShareGroupStateRequest"
READ_STATE = "ReadShareGroupStateResponse"

_STATE_FIELDS = (
    ("skep_generation", i32, 10_000, "int32", i32(0)),
    ("skep_batches", bytes, 10_001, "bytes", b""),
)
"""Name, type, tag, type in kio's words, and default of each."""

_PLACES = {
    WRITE_STATE: ("topics", "partitions"),
    READ_STATE: ("results", "partitions"),
}
"""The path of arrays to the structure that gets the fields."""


def with_private_fields(entity: Any) -> Any:
    """Returns the class of a message with the fields that are added to it; the same class if there are none."""
    path = _PLACES.get(entity.__name__)
    return entity if path is None else _extended(entity, path)


def _extended(entity: Any, path: tuple[str, ...]) -> Any:
    if not path:
        return _derived(entity, [_declared(*field) for field in _STATE_FIELDS])
    [array] = [field for field in dataclasses.fields(entity) if field.name == path[0]]
    element: Any = _extended(get_args(array.type)[0], path[1:])
    return _derived(entity, [(array.name, tuple[element, ...])])


def _declared(name: str, type_: Any, tag: int, kafka_type: str, default: Any) -> tuple[str, Any, Any]:
    field: Any = dataclasses.field(default=default, metadata={"kafka_type": kafka_type, "tag": tag})
    return name, type_, field


def _derived(entity: Any, fields: list[Any]) -> Any:
    return dataclasses.make_dataclass(entity.__name__, fields, bases=(entity,), frozen=True, kw_only=True)
