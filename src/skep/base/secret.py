"""Passwords, keys and tokens that do not show themselves.

A value of this type can be logged, formatted, put in an error or printed by a debugger, and the secret is not seen.
Whoever needs it calls ``reveal``, which is easy to search for.
"""

import hmac
from typing import Any

HIDDEN = "[hidden]"
"""What is shown in place of a secret, as in Kafka's logs."""


class Secret:
    """A text that nobody sees by accident. Equality takes the same time wherever two secrets differ."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        return self._value

    def __repr__(self) -> str:
        return HIDDEN

    def __format__(self, spec: str) -> str:
        return format(HIDDEN, spec)

    def __bool__(self) -> bool:
        return bool(self._value)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Secret):
            return NotImplemented
        return hmac.compare_digest(self._value.encode(), other._value.encode())

    def __hash__(self) -> int:
        return hash(self._value)

    def __reduce__(self) -> Any:
        # A process that gets a pickled secret is meant to have it: Spark's tasks need the settings of their driver.
        return Secret, (self._value,)
