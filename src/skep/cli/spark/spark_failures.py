"""Errors of Spark in one line: without stack traces, the plan and the text of the query.

Spark's messages are ``[CONDITION] sentence. SQLSTATE: 42601 (line 1, pos 9)``, followed by pages of detail. An error of
Skep's data source arrives as a Python traceback inside such a message; the last line of the traceback is the message.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from skep.cli.failures import CommandError

_JAVA_CLASS = r"(?:[a-z_]\w*\.)+[A-Za-z_][\w$]*"
_QUERY = r"Query .*?\[id = .*?\] terminated with exception: "
_CONDITION = re.compile(rf"^(?:{_QUERY}|\({_JAVA_CLASS}\)\s*|{_JAVA_CLASS}: |\[[A-Z0-9_.]+\]\s*)+")
_ADVICE = re.compile(r"(cannot be found)\. Verify the spelling.*?(?=;|$)")
"""What Spark recommends for a missing table: catalogs, schemas and DROP, which our users have not named."""
_SQLSTATE = re.compile(r"\s*SQLSTATE: [0-9A-Z]{5}")
_RAISED = re.compile(r"^(?:(?:[A-Za-z_]\w*\.)+[A-Z]\w*|[A-Z]\w*(?:Error|Exception)): (.+)$")
_TRACEBACK = "Traceback (most recent call last):"
MAX_LENGTH = 600


def one_line(error: BaseException | str) -> str:
    """Returns the sentence of ``error`` that describes the problem."""
    text = error if isinstance(error, str) else _text_of(error)
    if _TRACEBACK in text:
        raised = [found.group(1) for line in text.splitlines() if (found := _RAISED.match(line.strip()))]
        if raised:
            return _tidy(raised[-1])
    return _tidy(_first_paragraph(text))


def _text_of(error: BaseException) -> str:
    # str() of Connect's exceptions may include the JVM's stack trace after the message.
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
    sentence = _ADVICE.sub(r"\1", sentence)
    sentence = sentence.rstrip(" ;.").replace(". (line", " (line").replace(".; line", "; line")
    return sentence if len(sentence) <= MAX_LENGTH else sentence[:MAX_LENGTH] + "..."


@contextmanager
def spark_errors(prefix: str = "") -> Iterator[None]:
    """Turns errors of Spark inside the ``with`` into CommandErrors of one line."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        yield
    except (PySparkException, Py4JError) as error:
        raise CommandError(prefix + one_line(error)) from None
