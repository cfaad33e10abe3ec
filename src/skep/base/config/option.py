"""Options: each is declared once, as a field of a frozen dataclass, with its name, type, default, check and text.

    @dataclass(frozen=True, slots=True)
    class TopicConfig:
        segment_bytes: int = option("segment.bytes", 1 << 30, at_least(14), "Size at which a segment is rolled.")

Parsing, DescribeConfigs, AlterConfigs, ``--help`` and CONFIGURATION.md all read the declaration, so they cannot
disagree. A table may contain other tables as sections (``SECTION``); their options are its options too.
"""

import dataclasses
import enum
import operator
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from skep.base.errors import OptionError
from skep.base.unknown_names import did_you_mean

Check = Callable[[Any], str | None]
"""Returns what is wrong with a value, or None."""

T = TypeVar("T")
C = TypeVar("C")


class OptionType(enum.Enum):
    """Kafka's types of a config value, with their numbers in DescribeConfigs."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    LONG = 5
    DOUBLE = 6
    LIST = 7
    PASSWORD = 9


@dataclasses.dataclass(frozen=True)
class Option:
    """One declared option. ``broker_name`` is the broker option that sets a topic option's default."""

    name: str
    field: str
    """The attribute that holds the value. An option of a section has a dotted path: ``cluster.metadata``."""
    type: OptionType
    default: Any
    check: Check
    doc: str
    dynamic: bool
    broker_name: str | None = None

    @property
    def is_sensitive(self) -> bool:
        """Whether DescribeConfigs hides the value."""
        return self.type is OptionType.PASSWORD

    def value_in(self, config: Any) -> Any:
        """Returns the option's value in ``config``, an instance of the class that declares it."""
        return operator.attrgetter(self.field)(config)

    def parse(self, text: str) -> Any:
        """Returns the value of ``text``. Raises OptionError with the option, the text and the problem."""
        shown = self.name if self.is_sensitive else f"{self.name}={text}"
        try:
            value = _PARSERS[self.type](text.strip())
        except ValueError:
            raise OptionError(f"{shown}: expected {_EXPECTED[self.type]}") from None
        if (problem := self.check(value)) is not None:
            raise OptionError(f"{shown}: {problem}")
        return value

    def show(self, value: Any) -> str:
        """Returns ``value`` as text in Kafka's spelling, so that ``parse(show(value)) == value``."""
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, tuple):
            return ",".join(value)
        return str(value)


def _boolean(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError(text)
    return text.lower() == "true"


def _plain(text: str) -> str:
    # Python also accepts 1_000 and digits of other scripts as numbers; Kafka and its tools do not.
    if "_" in text or not text.isascii():
        raise ValueError(text)
    return text


def _bounded(bits: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        number = int(_plain(text))
        if not -(1 << (bits - 1)) <= number < 1 << (bits - 1):
            raise ValueError(text)
        return number

    return parse


_PARSERS: dict[OptionType, Callable[[str], Any]] = {
    OptionType.BOOLEAN: _boolean,
    OptionType.STRING: str,
    OptionType.INT: _bounded(32),
    OptionType.LONG: _bounded(64),
    OptionType.DOUBLE: lambda text: float(_plain(text)),
    OptionType.PASSWORD: str,
    OptionType.LIST: lambda text: tuple(part.strip() for part in text.split(",") if part.strip()),
}

_EXPECTED = {
    OptionType.BOOLEAN: "true or false",
    OptionType.STRING: "text",
    OptionType.INT: "a 32-bit number",
    OptionType.LONG: "a 64-bit number",
    OptionType.DOUBLE: "a number",
    OptionType.PASSWORD: "text",
    OptionType.LIST: "a comma-separated list",
}


def option(
    name: str,
    default: T,
    check: Check,
    doc: str,
    *,
    type: OptionType | None = None,
    dynamic: bool = True,
    broker_name: str | None = None,
) -> T:
    """Returns a dataclass field that declares an option. Its type follows from the default; LONG must be given."""
    declared = {
        "name": name,
        "type": type or _TYPE_OF[default.__class__],
        "check": check,
        "doc": doc,
        "dynamic": dynamic,
        "broker_name": broker_name,
    }
    field: T = dataclasses.field(default=default, metadata=declared)
    return field


_TYPE_OF: dict[Any, OptionType] = {
    bool: OptionType.BOOLEAN,
    int: OptionType.INT,
    float: OptionType.DOUBLE,
    str: OptionType.STRING,
    tuple: OptionType.LIST,
}


SECTION: Mapping[str, bool] = {"section": True}
"""The metadata of a dataclass field that holds another table of options."""


def declared(config: Any) -> dict[str, Option]:
    """Returns the options of a config class (or of an instance) and of its sections by Kafka's name, as declared."""
    options: dict[str, Option] = {}
    for field in dataclasses.fields(config):
        if "section" in field.metadata:
            for name, one in declared(field.default_factory).items():
                options[name] = dataclasses.replace(one, field=f"{field.name}.{one.field}")
        elif field.metadata:
            options[field.metadata["name"]] = Option(field=field.name, default=field.default, **field.metadata)
    return options


def parse_into(config: C, texts: Mapping[str, str]) -> C:
    """Returns ``config`` with the named options set from text. Raises OptionError for an unknown name."""
    options = declared(config)
    values: dict[str, dict[str, Any]] = {"": {}}
    for name, text in texts.items():
        if name not in options:
            raise OptionError(f"{name}: there is no such option{meant(name, options)}")
        part, _, field = options[name].field.rpartition(".")
        values.setdefault(part, {})[field] = options[name].parse(text)
    own = values.pop("")
    parts = {part: dataclasses.replace(getattr(config, part), **changes) for part, changes in values.items()}
    changed: C = dataclasses.replace(config, **own, **parts)  # type: ignore[type-var]
    return changed


def meant(name: str, known: Iterable[str]) -> str:
    """Returns the end of a message about an unknown option: the known name that it resembles, if any."""
    return did_you_mean(name, known, most=1)


def anything(value: Any) -> str | None:
    return None


def at_least(low: float) -> Check:
    return lambda value: None if value >= low else f"must be at least {low}"


def between(low: float, high: float) -> Check:
    return lambda value: None if low <= value <= high else f"must be between {low} and {high}"


def one_of(*allowed: str) -> Check:
    return lambda value: None if value in allowed else f"must be one of {', '.join(allowed)}"


def all_or_each_like(pattern: str, shown: str) -> Check:
    """Accepts the list ``*``, or a list of values that match the pattern. ``shown`` describes such a value."""
    matches = re.compile(pattern).fullmatch

    def check(values: Any) -> str | None:
        if values == ("*",) or all(map(matches, values)):
            return None
        return f"must be * or a list of {shown}"

    return check


def some_of(*allowed: str) -> Check:
    """Accepts a list of these values, also an empty one."""

    def check(values: Any) -> str | None:
        if all(value in allowed for value in values):
            return None
        return f"must be a list of {', '.join(allowed)}"

    return check


def each_of(*allowed: str) -> Check:
    """Accepts a list of at least one of these values."""
    check_some = some_of(*allowed)
    return lambda values: check_some(values or ("",))


def topic_name_or_empty(value: str) -> str | None:
    if value and (not re.fullmatch("[a-zA-Z0-9._-]{1,249}", value) or value in (".", "..")):
        return "must be the name of a topic"
    return None
