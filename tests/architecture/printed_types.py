"""Prints src/skep/wire/entities/request_types.py from kio's classes of the versions served: ``make types``."""

import dataclasses
import datetime
import types
import typing
import uuid
from pathlib import Path
from typing import Any, NamedTuple

from kio.schema import types as kio_types

from skep.base.errors import ErrorCode
from skep.wire.apis import SERVED, Api
from skep.wire.codec import request_class

PRINTED = Path(__file__).parents[2] / "src" / "skep" / "wire" / "entities" / "request_types.py"

HEAD = '''"""The fields of the requests served, for mypy only. ``make types`` prints this from kio's classes.

A body is an object of kio's class for its version, never of a class here. A field has the type that it has in all
versions served, and is nullable if it is so in one of them. A comment names the versions of a field that not all of
them have: it is read after a check of ``request.version``, or with ``getattr`` and a default.
"""

from __future__ import annotations

from datetime import timedelta
from uuid import UUID

from skep.base.ids import BrokerId, ProducerId
'''

_PLAIN: tuple[tuple[type, str], ...] = (
    (kio_types.BrokerId, "BrokerId"),
    (kio_types.ProducerId, "ProducerId"),
    (ErrorCode, "ErrorCode"),
    (bool, "bool"),
    (int, "int"),
    (float, "float"),
    (str, "str"),
    (bytes, "bytes"),
    (uuid.UUID, "UUID"),
    (datetime.timedelta, "timedelta"),
)
"""What the classes of kio are to handlers. The first that fits counts."""


class _Field(NamedTuple):
    hint: str
    is_nullable: bool
    versions: tuple[int, ...]


class _Structure:
    """One class with the fields of all versions, in the order in which they appear."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.versions: list[int] = []
        self.fields: dict[str, _Field] = {}

    def add(self, name: str, hint: str, is_nullable: bool, version: int) -> None:
        before = self.fields.get(name, _Field(hint, False, ()))
        assert before.hint == hint, f"{self.name}.{name} is {before.hint} and, in version {version}, {hint}"
        self.fields[name] = _Field(hint, before.is_nullable or is_nullable, (*before.versions, version))

    def lines(self, indent: str) -> list[str]:
        lines = []
        for name, field in self.fields.items():
            absent = "" if list(field.versions) == self.versions else f"  # {_span(field.versions)}"
            lines.append(f"{indent}{name}: {field.hint}{' | None' * field.is_nullable}{absent}")
        return lines


def request_types() -> str:
    return "\n\n".join([HEAD, *(_printed(api) for api in SERVED.values())])


def _printed(api: Api) -> str:
    structures: dict[str, _Structure] = {}
    for version in range(api.oldest, api.newest + 1):
        _collect(api, request_class(api.key, version), version, structures)
    body, *nested = structures.values()
    lines = [f"class {body.name}:"]
    for structure in nested:
        lines += [f"    class {_short(api, structure.name)}:", *structure.lines("        "), ""]
    lines += body.lines("    ") or ["    pass"]
    return "\n".join(lines) + "\n"


def _collect(api: Api, entity: Any, version: int, structures: dict[str, _Structure]) -> None:
    structure = structures.setdefault(entity.__name__, _Structure(entity.__name__))
    structure.versions.append(version)
    for field in dataclasses.fields(entity):
        hint, is_nullable = _without_none(field.type)
        is_array = typing.get_origin(hint) is tuple
        element = _without_none(typing.get_args(hint)[0])[0] if is_array else hint
        if dataclasses.is_dataclass(element):
            name = f"{api.name}Request.{_short(api, element.__name__)}"
            _collect(api, element, version, structures)
        else:
            name = next(name for kind, name in _PLAIN if issubclass(element, kind))
        structure.add(field.name, f"tuple[{name}, ...]" if is_array else name, is_nullable, version)


def _short(api: Api, name: str) -> str:
    """``Topic`` for the class FetchTopic of Fetch, and for OffsetCommitRequestTopic of OffsetCommit."""
    return name.removeprefix(api.name).removeprefix("Request")


def _without_none(hint: Any) -> tuple[Any, bool]:
    if not isinstance(hint, types.UnionType):
        return hint, False
    [other] = [part for part in typing.get_args(hint) if part is not types.NoneType]
    return other, True


def _span(versions: tuple[int, ...]) -> str:
    return f"{versions[0]} to {versions[-1]}" if len(versions) > 1 else f"{versions[0]} only"


if __name__ == "__main__":
    PRINTED.write_text(request_types())
