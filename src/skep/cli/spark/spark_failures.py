"""What Spark complains about, in one line: without stack traces, error frames and the text of the whole query.

Spark's messages are ``[CONDITION] sentence. SQLSTATE: 42601 (line 1, pos 9)`` and then pages. An error of our data
source arrives as a Python traceback inside such a message; its last line is the one that was written for people.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from skep.cli.failures import CommandError

_JAVA_CLASS = r"(?:[a-z_]\w*\.)+[A-Za-z_][\w$]*"
_QUERY = r"Query .*?\[id = .*?\] terminated with exception: "
_CONDITION = re.compile(rf"^(?:{_QUERY}|\({_JAVA_CLASS}\)\s*|{_JAVA_CLASS}: |\[[A-Z0-9_.]+\]\s*)+")
_SQLSTATE = re.compile(r"\s*SQLSTATE: [0-9A-Z]{5}")
_RAISED = re.compile(r"^(?:(?:[A-Za-z_]\w*\.)+[A-Z]\w*|[A-Z]\w*(?:Error|Exception)): (.+)$")
_TRACEBACK = "Traceback (most recent call last):"
MOST_CHARACTERS = 600


def one_line(error: BaseException | str) -> str:
    """The sentence of ``error`` that tells a user what is wrong."""
    text = error if isinstance(error, str) else _text_of(error)
    if _TRACEBACK in text:
        raised = [found.group(1) for line in text.splitlines() if (found := _RAISED.match(line.strip()))]
        if raised:
            return _tidy(raised[-1])
    return _tidy(_first_paragraph(text))


def _text_of(error: BaseException) -> str:
    # Connect's exceptions print the JVM's stack after the message when they have one.
    message = getattr(error, "_message", None) or getattr(error, "desc", None)
    text = message if isinstance(message, str) and message else str(error)
    return text or type(error).__name__


def _first_paragraph(text: str) -> str:
    kept: list[str] = []
    for line in text.strip().splitlines():
        if kept and (not line.strip() or line.startswith(("==", "'", "+-", "\tat ", "JVM stacktrace"))):
            break
        kept.append(line.strip())
    return " ".join(kept)


def _tidy(sentence: str) -> str:
    sentence = _SQLSTATE.sub("", _CONDITION.sub("", " ".join(sentence.split())))
    sentence = sentence.rstrip(" ;.").replace(". (line", " (line").replace(".; line", "; line")
    return sentence if len(sentence) <= MOST_CHARACTERS else sentence[:MOST_CHARACTERS] + "..."


@contextmanager
def told_in_one_line(prefix: str = "") -> Iterator[None]:
    """Turns what Spark raises inside into a CommandError."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        yield
    except (PySparkException, Py4JError) as error:
        raise CommandError(prefix + one_line(error)) from None
