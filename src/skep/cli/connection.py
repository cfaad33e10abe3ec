"""Reaching a cluster: where it is, how the client library is set up, and what is said when nobody answers.

librdkafka would print its own log lines on stderr and try again for ever. Here it keeps quiet, and the last thing it
complained about becomes part of the one line that the user gets.
"""

import difflib
import time
from collections import deque
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any

import typer
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from skep.cli.failures import CommandError, UsageError, reason

if TYPE_CHECKING:
    from confluent_kafka.admin._metadata import ClusterMetadata, TopicMetadata

DEFAULT_BOOTSTRAP = "127.0.0.1:9092"
ANSWER_WITHIN_S = 5.0
REQUEST_TIMEOUT_S = 30.0
"""For work that a broker may need time for; that it is there at all shows within ``ANSWER_WITHIN_S``."""
HEARD_OF_WITHIN_S, PAUSE_S = 1.0, 0.1
REMEMBERED_COMPLAINTS = 100
_NOBODY_THERE = (KafkaError._TRANSPORT, KafkaError._TIMED_OUT, KafkaError._ALL_BROKERS_DOWN, KafkaError._RESOLVE)

Bootstrap = Annotated[
    str,
    typer.Option(
        "--bootstrap-server",
        "-b",
        envvar="SKEP_BOOTSTRAP",
        metavar="HOST:PORT",
        help="A broker of the cluster, or several, separated by commas.",
    ),
]
Properties = Annotated[
    list[str] | None,
    typer.Option(
        "--property",
        "-X",
        metavar="NAME=VALUE",
        help="A setting of the client library, e.g. security.protocol=SSL. Repeatable.",
    ),
]


class Cluster:
    """A cluster by its address and the client's settings; connects when it is first asked something."""

    def __init__(
        self,
        bootstrap: str,
        properties: Mapping[str, str] | None = None,
        request_timeout_s: float = REQUEST_TIMEOUT_S,
    ) -> None:
        self.bootstrap = bootstrap
        self.properties = dict(properties or {})
        self.request_timeout_s = request_timeout_s
        self._complaints: deque[KafkaError] = deque(maxlen=REMEMBERED_COMPLAINTS)

    def config(self, settings: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """The configuration of a client. The user's own settings win over ``settings``."""
        quiet = {"log_level": 0, "error_cb": self._complaints.append}
        address = {"bootstrap.servers": self.bootstrap}
        return {"client.id": "skep-cli", **(settings or {}), **self.properties, **quiet, **address}

    @cached_property
    def admin(self) -> AdminClient:
        try:
            return AdminClient(self.config())
        except KafkaException as error:
            raise UsageError(reason(error)) from None

    def metadata(self, *expected: str) -> "ClusterMetadata":
        """All topics and brokers. Asks for no topic by name, because that would create the topic.

        While a topic that is expected is missing it asks again, for a moment: what one broker has created another one
        may not have heard of yet.
        """
        deadline = time.monotonic() + HEARD_OF_WITHIN_S
        while True:
            found = self._metadata()
            if all(name in found.topics for name in expected) or time.monotonic() > deadline:
                return found
            time.sleep(PAUSE_S)

    def _metadata(self) -> "ClusterMetadata":
        try:
            return self.admin.list_topics(timeout=ANSWER_WITHIN_S)
        except KafkaException as error:
            if error.args[0].code() not in _NOBODY_THERE:
                raise
            self.admin.poll(0)
            raise CommandError(nobody_answers(self.bootstrap, self._complaints)) from None

    def topic(self, name: str) -> "TopicMetadata":
        topics = self.metadata(name).topics
        if name not in topics:
            raise unknown_topic(name, topics)
        return topics[name]


def nobody_answers(bootstrap: str, complaints: Iterable[KafkaError]) -> str:
    """The line for a cluster that cannot be reached: the hint for a refused connection, else the library's words."""
    told = [error.str() for error in complaints if error.code() != KafkaError._ALL_BROKERS_DOWN]
    if not told or "Connection refused" in told[-1]:
        return f"no broker answers at {bootstrap} (is it running? start one with: skep serve)"
    words = told[-1].partition(": ")[2] or told[-1]
    return f"no broker answers at {bootstrap} ({words.partition(' (after ')[0]})"


def unknown_topic(name: str, known: Iterable[str]) -> CommandError:
    close = difflib.get_close_matches(name, list(known), n=3)
    meant = f"; did you mean {' or '.join(close)}?" if close else ""
    return CommandError(f"there is no topic '{name}'{meant}")


def pairs(texts: Iterable[str] | None, what: str) -> dict[str, str]:
    """``name=value`` texts as a dict; the value may hold more equal signs."""
    parsed = {}
    for text in texts or ():
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise UsageError(f"{what} is written name=value, not '{text}'")
        parsed[name.strip()] = value
    return parsed


def cluster_of(bootstrap: str, properties: Iterable[str] | None) -> Cluster:
    return Cluster(bootstrap, pairs(properties, "a property"))
