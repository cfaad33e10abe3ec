"""Values of quotas as people write them: ``1MB/s``, ``25%``, ``5/s``; and as they are shown."""

import re

from skep.cli import output
from skep.cli.failures import UsageError
from skep.security.quotas.entities import CLIENT_KEYS, IP_KEYS, REQUEST_PERCENTAGE

_UNITS = {"": 1, "k": 1000, "m": 1000**2, "g": 1000**3, "t": 1000**4}
_BINARY_UNITS = {"ki": 1 << 10, "mi": 1 << 20, "gi": 1 << 30, "ti": 1 << 40}
_BYTES = re.compile(r"([0-9.eE+-]+)\s*([kmgt]i?)?b?(?:/s)?", re.IGNORECASE)
_NUMBER = re.compile(r"([0-9.eE+-]+)(?:/s|%)?")
_KEYS = (*CLIENT_KEYS, *IP_KEYS)


def quota_value(key: str, text: str) -> float:
    """Parses the value of a quota. Raises UsageError; whether it may be set is up to the broker."""
    pattern, example = (_BYTES, "1048576 or 1MB/s") if key.endswith("_byte_rate") else (_NUMBER, "25 or 0.5")
    match = pattern.fullmatch(text.strip())
    try:
        number = float(match[1]) if match else None
    except ValueError:
        number = None
    if match is None or number is None:
        raise UsageError(f"{key}={text}: expected a number, for example {example}")
    unit = (match[2] or "").lower() if pattern is _BYTES else ""
    # Whole bytes: 0.3 MB is 300000, also in the numbers of a computer.
    return float(round(number * {**_UNITS, **_BINARY_UNITS}[unit])) if unit else number


def check_key(key: str) -> str:
    if key not in _KEYS:
        raise UsageError(f"{key} is not a quota; there are {', '.join(_KEYS)}")
    return key


def shown_value(key: str, value: float) -> str:
    """Returns ``1.05 MB/s``, ``25 %`` or ``5 /s``."""
    if key.endswith("_byte_rate"):
        return output.rate(value, 1, "B")
    return f"{value:g} %" if key == REQUEST_PERCENTAGE else f"{value:g} /s"
