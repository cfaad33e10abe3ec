"""How many kills and random schedules a test makes: fewer in ``make test``, more in ``make torture``.

A test that asks here has the mark ``long``, by which ``make torture`` finds it. The short form keeps every kind of
fault that the long one has; it only has fewer of each.
"""

import os

IS_LONG = os.environ.get("SKEP_TEST_LENGTH") == "long"


def times(short: int, long: int) -> int:
    return long if IS_LONG else short
