"""Which topic names are allowed: Kafka's rules, because names become directories and metric names."""

import re

from skep.base.errors import ErrorCode, KafkaError

MAX_NAME_LENGTH = 249
"""A directory is called ``{topic}-{partition}``: with five digits, 255, which is where file names end."""

_LEGAL = re.compile(r"[a-zA-Z0-9._-]+")


def check_topic_name(name: str) -> None:
    """INVALID_TOPIC_EXCEPTION, saying why, for a name that no topic can have."""
    if (problem := _problem(name)) is not None:
        raise KafkaError(ErrorCode.invalid_topic_exception, f"Topic name is invalid: {problem}")


def is_topic_name(name: str) -> bool:
    return _problem(name) is None


def _problem(name: str) -> str | None:
    if not name:
        return "the empty string is not allowed"
    if name in (".", ".."):
        return f"'{name}' is not allowed"
    if len(name) > MAX_NAME_LENGTH:
        return f"its {len(name)} characters are more than the {MAX_NAME_LENGTH} allowed"
    if _LEGAL.fullmatch(name) is None:
        return f"{name!r} contains characters other than ASCII letters, digits, '.', '_' and '-'"
    return None


def metric_name(name: str) -> str:
    """The name as metrics spell it. Two topics with the same one would be counted as one, so the second is refused."""
    return name.replace(".", "_")
