"""The options that Spark hands to the data source, read into a table of declared options.

Spark passes option names in lower case, whatever the user wrote, so names are compared without regard to case.
"""

import dataclasses
import logging
from collections.abc import Mapping
from typing import TypeVar

from skep.base.config.option import declared, meant
from skep.base.errors import OptionError

C = TypeVar("C")

_log = logging.getLogger(__name__)
_JVM = "it is a setting of Kafka's Java clients and has no meaning here"
_SECURITY = ("kafka.ssl.", "kafka.sasl.")


def parse_options(config: C, given: Mapping[str, str], refused: Mapping[str, str]) -> C:
    """Returns ``config`` with the given options set. Raises OptionError for an option that is unknown or refused."""
    known = declared(config)
    spelled = {name.lower(): name for name in known}
    reasons = {name.lower(): (name, why) for name, why in refused.items()}
    values = {}
    for name, text in given.items():
        lower = name.lower()
        if lower in spelled:
            row = known[spelled[lower]]
            values[row.field] = row.parse(text)
        elif lower in reasons:
            raise OptionError("option {} is not supported: {}".format(*reasons[lower]))
        elif lower.startswith(_SECURITY):
            raise OptionError(f"option {name} is not supported: only PLAINTEXT connections are supported")
        elif lower.startswith("kafka."):
            raise OptionError(f"option {name} is not supported: {_JVM}{meant(lower, spelled)}")
        else:
            raise OptionError(f"{name}: there is no such option{_meant(lower, spelled)}")
    changed: C = dataclasses.replace(config, **values)  # type: ignore[type-var]
    return changed


def warn_without_effect(given: Mapping[str, str], reasons: Mapping[str, str]) -> None:
    """Logs a warning for each given option that ``reasons`` names."""
    lowered = {name.lower() for name in given}
    for name, why in reasons.items():
        if name.lower() in lowered:
            _log.warning("option %s has no effect: %s", name, why)


def _meant(lower: str, spelled: Mapping[str, str]) -> str:
    hint = meant(lower, spelled)
    for name in spelled:
        hint = hint.replace(f" {name}?", f" {spelled[name]}?")
    return hint
