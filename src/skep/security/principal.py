"""Principals: who a client is, as ``User:alice``."""

from typing import NamedTuple

from skep.base.errors import OptionError

USER = "User"


class Principal(NamedTuple):
    """The type is always ``User`` here, as in Kafka without a custom principal builder."""

    name: str
    type: str = USER

    def __str__(self) -> str:
        return f"{self.type}:{self.name}"


ANONYMOUS = Principal("ANONYMOUS")
"""The client of a listener without authentication."""
WILDCARD = Principal("*")
"""Matches every user, in an ACL."""


def parse_principal(text: str) -> Principal:
    """Parses ``User:alice``. Raises OptionError if the type or the name is missing, or for another type."""
    kind, colon, name = text.partition(":")
    if not colon or not name:
        raise OptionError(f"principal {text!r}: expected TYPE:NAME, e.g. User:alice")
    if kind != USER:
        raise OptionError(f"principal {text!r}: the type must be {USER}")
    return Principal(name)
