"""Topic names: Kafka's rules, because names become directories and metric names."""

import re

from skep.base.errors import ErrorCode, KafkaError

MAX_NAME_LENGTH = 249
"""A directory is called ``{topic}-{partition}``. With five digits that makes 255, the limit of file names."""

_LEGAL = re.compile(r"[a-zA-Z0-9._-]+")


def check_topic_name(name: str) -> None:
    """Raises INVALID_TOPIC_EXCEPTION with the reason if no topic can have this name."""
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
        return f"it has {len(name)} characters, and {MAX_NAME_LENGTH} are allowed"
    if _LEGAL.fullmatch(name) is None:
        return f"{name!r} contains characters other than ASCII letters, digits, '.', '_' and '-'"
    return None


def metric_name(name: str) -> str:
    """Returns the name as metrics show it. Two topics with the same one would share metrics: the second is refused."""
    return name.replace(".", "_")
