"""What a command of the private API is: a function, and the arguments that it takes.

The arguments are a JSON object. They are checked against the declaration before the function is called, so that the
function reads them without a doubt: each required one is there, each has its kind, and none is unknown. A misspelt
argument that were ignored would do something else than was asked for.
"""

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple

from skep.base.errors import ErrorCode, KafkaError
from skep.broker.services import Services

MAX_ARGUMENT_BYTES = 64 * 1024
"""The JSON of one command: a parse of a millisecond at the most."""
MAX_RANGES = 1000
LARGEST = (1 << 63) - 1

_REQUIRED: Any = object()


class Argument(NamedTuple):
    """One argument. ``expected`` says in words what ``is_valid`` checks."""

    is_valid: Callable[[Any], bool]
    expected: str
    default: Any = _REQUIRED

    @property
    def is_required(self) -> bool:
        return self.default is _REQUIRED


class Subject(NamedTuple):
    """A thing as the audit shows it. The value is JSON-able and has no secrets."""

    what: str
    name: str
    value: Mapping[str, Any]


class Command(NamedTuple):
    """``run`` gets all arguments, with the defaults, and returns what becomes JSON. It raises KafkaError."""

    run: Callable[[Services, Mapping[str, Any]], Any | Awaitable[Any]]
    arguments: Mapping[str, Argument]
    subject: Callable[[Services, Mapping[str, Any]], Subject] | None = None
    """Returns what the command changes, as it is now: for the audit, before and after."""


def text(*, most: int = 1000, default: Any = _REQUIRED) -> Argument:
    return Argument(lambda value: _is_text(value, most), f"a string of at most {most} characters", default)


def texts(*, most: int, longest: int) -> Argument:
    def is_valid(value: Any) -> bool:
        return isinstance(value, list) and len(value) <= most and all(_is_text(one, longest) for one in value)

    return Argument(is_valid, f"a list of at most {most} strings of at most {longest} characters")


def number(*, least: int = 0, most: int = LARGEST, default: Any = _REQUIRED) -> Argument:
    return Argument(lambda value: _is_number(value, least, most), f"a whole number from {least} to {most}", default)


def offset_ranges() -> Argument:
    """``[[first, last], ...]``, both inclusive."""

    def is_valid(value: Any) -> bool:
        return isinstance(value, list) and 0 < len(value) <= MAX_RANGES and all(map(_is_range, value))

    return Argument(is_valid, f"a list of 1 to {MAX_RANGES} pairs [first offset, last offset]")


def checked_arguments(name: str, command: Command, given: bytes) -> dict[str, Any]:
    """Returns the arguments of a command. Raises INVALID_REQUEST, with what is wrong and what was expected."""
    found = _parsed(name, given)
    if unknown := found.keys() - command.arguments.keys():
        takes = ", ".join(command.arguments) or "none"
        raise _invalid(name, f"has no argument {min(unknown)[:100]!r}; it takes {takes}")
    arguments = {}
    for argument_name, argument in command.arguments.items():
        if argument_name not in found:
            if argument.is_required:
                raise _invalid(name, f"needs the argument {argument_name!r}, {argument.expected}")
            arguments[argument_name] = argument.default
            continue
        value = found[argument_name]
        if not argument.is_valid(value):
            shown = repr(value)
            shown = shown if len(shown) <= 100 else f"{shown[:100]}..."
            raise _invalid(name, f"takes as {argument_name!r} {argument.expected}, not {shown}")
        arguments[argument_name] = value
    return arguments


def _parsed(name: str, given: bytes) -> dict[str, Any]:
    if len(given) > MAX_ARGUMENT_BYTES:
        raise _invalid(name, f"has {len(given)} bytes of arguments; at most {MAX_ARGUMENT_BYTES} are allowed")
    try:
        found = json.loads(given)
    except (ValueError, RecursionError):
        raise _invalid(name, "has arguments that are not JSON") from None
    if not isinstance(found, dict):
        raise _invalid(name, "has arguments that are not a JSON object")
    return found


def _invalid(name: str, what: str) -> KafkaError:
    return KafkaError(ErrorCode.invalid_request, f"the command {name!r} {what}")


def _is_text(value: Any, most: int) -> bool:
    if not isinstance(value, str) or len(value) > most:
        return False
    try:
        value.encode()  # JSON may have half of a pair of surrogates
    except UnicodeEncodeError:
        return False
    return True


def _is_number(value: Any, least: int, most: int) -> bool:
    return type(value) is int and least <= value <= most


def _is_range(value: Any) -> bool:
    if not isinstance(value, list) or len(value) != 2:
        return False
    first, last = value
    return _is_number(first, 0, LARGEST) and _is_number(last, 0, LARGEST) and bool(first <= last)
