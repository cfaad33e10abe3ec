"""The connection to a cluster: its address, the client's configuration, and the error when no broker answers.

librdkafka logs to stderr and retries for ever by default. Here its log is off, and its last error becomes part of the
one line that the user sees.
"""

import time
from collections import deque
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any

import typer
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from skep.base.addresses import DEFAULT_BOOTSTRAP as DEFAULT_BOOTSTRAP
from skep.base.unknown_names import no_such_topic
from skep.cli.command_config import with_command_config
from skep.cli.failures import CommandError, UsageError, reason

if TYPE_CHECKING:
    from confluent_kafka.admin._metadata import ClusterMetadata, TopicMetadata

CONNECT_TIMEOUT_S = 5.0
"""How long a cluster may take to answer a first, cheap request."""
REFUSAL_TIMEOUT_S = 1.0
"""How long all addresses may refuse connections. Not zero: librdkafka tries the addresses of a name one at a time."""
REQUEST_TIMEOUT_S = 30.0
"""How long a broker may take for a request that does work."""
PROPAGATION_TIMEOUT_S, PAUSE_S = 1.0, 0.1
"""How long a topic created on one broker may take to be visible on another; how often to look."""
KEPT_ERRORS = 100
HOW_TO_START = "is it running? start one with: skep serve"
_UNREACHABLE = (KafkaError._TRANSPORT, KafkaError._TIMED_OUT, KafkaError._ALL_BROKERS_DOWN, KafkaError._RESOLVE)

Bootstrap = Annotated[
    str,
    typer.Option(
        "--bootstrap-server",
        "-b",
        envvar="SKEP_BOOTSTRAP",
        metavar="HOST:PORT",
        help="Broker addresses, separated by commas.",
    ),
]
Properties = Annotated[
    list[str] | None,
    typer.Option(
        "--property",
        "-X",
        metavar="NAME=VALUE",
        help="A client property of librdkafka or of Java, e.g. security.protocol=SSL. Repeatable.",
        callback=with_command_config,
    ),
]


class Cluster:
    """A cluster: its address and the client's properties. Connects on the first request."""

    def __init__(
        self,
        bootstrap: str,
        properties: Mapping[str, str] | None = None,
        request_timeout_s: float = REQUEST_TIMEOUT_S,
    ) -> None:
        """``properties`` have the names of librdkafka or, for security, of Java. Raises UsageError for a bad one."""
        self.bootstrap = bootstrap
        self.properties = _for_librdkafka(properties or {})
        self.request_timeout_s = request_timeout_s
        self._errors: deque[KafkaError] = deque(maxlen=KEPT_ERRORS)

    def config(self, settings: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Returns the configuration of a client. The user's properties override ``settings``."""
        quiet = {"log_level": 0, "error_cb": self._errors.append}
        address = {"bootstrap.servers": self.bootstrap}
        return {"client.id": "skep-cli", **(settings or {}), **self.properties, **quiet, **address}

    @cached_property
    def admin(self) -> AdminClient:
        try:
            return AdminClient(self.config())
        except KafkaException as error:
            raise UsageError(reason(error)) from None

    def metadata(self, *expected: str) -> "ClusterMetadata":
        """Returns all topics and brokers. The request names no topic, because that could create the topic.

        If an expected topic is missing, the request is repeated for up to a second: a topic created on one broker may
        not be known to another yet.
        """
        deadline = time.monotonic() + PROPAGATION_TIMEOUT_S
        while True:
            found = self._metadata()
            if all(name in found.topics for name in expected) or time.monotonic() > deadline:
                return found
            time.sleep(PAUSE_S)

    def _metadata(self) -> "ClusterMetadata":
        for timeout_s in (REFUSAL_TIMEOUT_S, CONNECT_TIMEOUT_S - REFUSAL_TIMEOUT_S):
            try:
                return self.admin.list_topics(timeout=timeout_s)
            except KafkaException as error:
                if error.args[0].code() not in _UNREACHABLE:
                    raise
                self.admin.poll(0)
            if self._was_refused():
                break
            if (why := self._what_is_insecure()) is not None:
                raise CommandError(why)
        raise CommandError(unreachable_text(self.bootstrap, self._errors))

    def _was_refused(self) -> bool:
        """Returns whether nobody listens at any address, so that waiting is useless."""
        failures = [error.str() for error in self._errors if error.code() == KafkaError._TRANSPORT]
        return bool(failures) and all("Connection refused" in text for text in failures)

    def _what_is_insecure(self) -> str | None:
        """Returns what is wrong with TLS or the login, in the words of Skep's own client; None if it is not that.

        librdkafka is not always told: a broker with TLS closes a connection without TLS, as one that stops would do.
        """
        from skep.client.cluster_client import ClusterClient
        from skep.client.errors import BadSetting, ClientError, SecurityFailure
        from skep.client.security.client_security import ClientSecurity
        from skep.client.security.tls_failure import NO_TLS_THERE, TLS_EXPECTED

        insecure = (KafkaError._AUTHENTICATION, KafkaError._SSL)
        # One request takes a third of it. If librdkafka knows that it is security, the answer is worth waiting for.
        known = any(error.code() in insecure for error in self._errors)
        timeout_s = 3 * REQUEST_TIMEOUT_S if known else CONNECT_TIMEOUT_S
        try:
            security = ClientSecurity.of(self.properties)
            with ClusterClient(self.bootstrap, timeout_s=timeout_s, security=security) as client:
                client.nodes()
        except (BadSetting, SecurityFailure) as error:
            return str(error)
        except ClientError as error:
            return str(error) if TLS_EXPECTED in str(error) or NO_TLS_THERE in str(error) else None
        return None

    def answers(self, timeout_s: float) -> bool:
        """Returns whether a broker answers a request in time."""
        try:
            self.admin.list_topics(timeout=timeout_s)
        except KafkaException as error:
            if error.args[0].code() not in _UNREACHABLE:
                raise
            return False
        return True

    def has_new_errors(self) -> bool:
        """Returns whether a client has reported an error, such as a lost connection, since the last call."""
        had_errors = bool(self._errors)
        self._errors.clear()
        return had_errors

    def topic(self, name: str) -> "TopicMetadata":
        """Returns the topic. Raises CommandError if it does not exist."""
        topics = self.metadata(name).topics
        if name not in topics:
            raise unknown_topic(name, topics)
        return topics[name]


def _for_librdkafka(properties: Mapping[str, str]) -> dict[str, str]:
    if not properties:
        return {}
    from skep.client.errors import BadSetting
    from skep.client.security.client_properties import librdkafka_properties

    try:
        return librdkafka_properties(properties)
    except BadSetting as error:
        raise UsageError(str(error)) from None


def unreachable_text(bootstrap: str, errors: Iterable[KafkaError]) -> str:
    """Returns the message for a cluster that cannot be reached, with librdkafka's last error or a hint."""
    texts = [error.str() for error in errors if error.code() != KafkaError._ALL_BROKERS_DOWN]
    if not texts or "Connection refused" in texts[-1]:
        return f"no broker answers at {bootstrap} ({HOW_TO_START})"
    detail = texts[-1].partition(": ")[2] or texts[-1]
    return f"no broker answers at {bootstrap} ({detail.partition(' (after ')[0]})"


def unknown_topic(name: str, known: Iterable[str]) -> CommandError:
    return CommandError(no_such_topic(name, known))


def pairs(texts: Iterable[str] | None, option: str) -> dict[str, str]:
    """Parses ``NAME=VALUE`` texts; the value may contain equal signs. ``option`` is for the error message."""
    parsed = {}
    for text in texts or ():
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise UsageError(f"{option} {text}: expected NAME=VALUE")
        parsed[name.strip()] = value
    return parsed


def cluster_of(bootstrap: str, properties: Iterable[str] | None) -> Cluster:
    return Cluster(bootstrap, pairs(properties, "--property"))
