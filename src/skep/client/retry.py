"""Retries: which error codes are retriable, how long to pause between attempts, and when to give up.

Only for requests that may be sent twice. Produce requests are retried by ``produce.produce_queue``, which keeps their
order; it uses the same table of codes.
"""

from collections.abc import Callable, Set
from typing import Protocol, TypeVar

from skep.base.clock import Clock
from skep.base.errors import ErrorCode, KafkaError
from skep.base.unknown_names import no_such_topic
from skep.client.errors import TimedOut, Unreachable

SHORTEST_PAUSE_S = 0.001
FIRST_PAUSE_S = 0.02
LONGEST_PAUSE_S = 1.0

_NOT_RETRIED = frozenset(
    {
        # The same bytes would be refused or read again.
        ErrorCode.corrupt_message,
        # A topic that a user names does not exist: reported at once. See RETRIABLE_FOR_PARTITION.
        ErrorCode.unknown_topic_or_partition,
        # Results of an election, which its caller reports for each partition.
        ErrorCode.election_not_needed,
        ErrorCode.preferred_leader_not_available,
        ErrorCode.eligible_leaders_not_available,
    }
)

RETRIABLE = frozenset(code for code in ErrorCode if code.retriable) - _NOT_RETRIED
"""Codes after which the same request can succeed: Kafka's ``RetriableException``, as kio lists it, less a few.

docs/decisions/0014-one-client-core.md explains the differences.
"""
RETRIABLE_FOR_PARTITION = RETRIABLE | {ErrorCode.unknown_topic_or_partition}
"""For a request to the leader that Metadata names. That broker may not have received the new topic yet; a topic that
was deleted is missing from Metadata at the next lookup."""
RETRIABLE_FOR_READ = RETRIABLE_FOR_PARTITION | {ErrorCode.unknown_server_error}
"""For Fetch. A read has no effect, so an unexpected failure of the broker is worth another attempt."""
RETRIABLE_FOR_CREATE = RETRIABLE | {ErrorCode.invalid_replication_factor}
"""For CreateTopics by a caller that waits for brokers: there may be fewer brokers than replicas until they are up."""

T = TypeVar("T")


class Timing(Protocol):
    """The part of ``ClusterClient`` that a retry needs."""

    timeout_s: float
    clock: Clock
    sleep: Callable[[float], None]


class Retry:
    """Attempts at one thing, given up ``timeout_s`` after the last progress.

    There is no pause after the first failure: most often a leader has moved, or an idle connection is from before a
    restart of the broker, and the second attempt succeeds. Later pauses grow from 20 ms to 1 s.
    """

    def __init__(self, timing: Timing, what: str, timeout_s: float | None = None) -> None:
        """``timeout_s`` defaults to that of the cluster."""
        self._clock = timing.clock
        self._sleep = timing.sleep
        self._timeout_s = timing.timeout_s if timeout_s is None else timeout_s
        self._what = what
        self._pause_s = 0.0
        self._since = self._clock.monotonic()

    def progress(self) -> None:
        """Starts the timeout and the pauses anew."""
        self._pause_s = 0.0
        self._since = self._clock.monotonic()

    def wait(self, reason: str, pause_s: float | None = None) -> None:
        """Pauses before the next attempt; raises TimedOut, with ``reason``, when the time is over.

        A caller whose request has already waited at the broker gives a fixed ``pause_s``.
        """
        left_s = self._since + self._timeout_s - self._clock.monotonic()
        if left_s <= 0:
            raise TimedOut(f"{self._what}: no progress for {self._timeout_s:g} s: {reason}")
        wanted_s = self._pause_s if pause_s is None else pause_s
        if wanted_s:
            self._sleep(max(SHORTEST_PAUSE_S, min(wanted_s, left_s)))
        if pause_s is None:
            self._pause_s = min(max(FIRST_PAUSE_S, 2 * self._pause_s), LONGEST_PAUSE_S)


def call_with_retries(
    timing: Timing,
    what: str,
    call: Callable[[], T],
    code_of: Callable[[T], ErrorCode] | None = None,
    *,
    retriable: Set[ErrorCode] = RETRIABLE,
) -> T:
    """Returns the first result that is neither a lost connection nor a retriable code; raises TimedOut without one.

    ``code_of`` finds the code in a result. A code that is not retriable is returned with its result.
    """
    retry = Retry(timing, what)
    while True:
        try:
            result = call()
        except Unreachable as error:
            retry.wait(str(error))
        except KafkaError as error:
            if error.code not in retriable:
                raise
            retry.wait(str(error))
        else:
            code = ErrorCode.none if code_of is None else code_of(result)
            if code not in retriable:
                return result
            retry.wait(code.name)


def check(code: ErrorCode, what: str, detail: str | None = None) -> None:
    """Raises KafkaError, with what it is about, unless the code is ``none``."""
    if code is not ErrorCode.none:
        raise KafkaError(code, f"{what}: {detail or code.name}")


def check_topic(code: ErrorCode, topic: str, detail: str | None = None) -> None:
    """Raises KafkaError, with the topic that it is about, unless the code is ``none``."""
    if code is ErrorCode.unknown_topic_or_partition:
        raise KafkaError(code, no_such_topic(topic))
    check(code, f"topic '{topic}'", detail)
