"""ISO 8601 durations, as far as Kafka's tools and options take them: ``PT1H30M``, ``P2DT0.5S``."""

import re

_ISO_DURATION = re.compile(r"P(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+(?:\.\d+)?)S)?)?", re.ASCII)


def iso_duration_ms(text: str) -> int | None:
    """Returns the milliseconds of ``text``, or None if it is not a duration. There are no negative ones."""
    match = _ISO_DURATION.fullmatch(text.upper())
    if match is None or not any(match.groups()):
        return None
    days, hours, minutes, seconds = (float(part or 0) for part in match.groups())
    return round((((days * 24 + hours) * 60 + minutes) * 60 + seconds) * 1000)
