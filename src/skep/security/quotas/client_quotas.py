"""The quotas of one client: which apply to a user and a client id, and the buckets that measure them.

Kafka's precedence, for each quota on its own, the first that is set:

    user + client id, user + default client id, user,
    default user + client id, default user + default client id, default user,
    client id, default client id

The rule that applies also says who shares the bucket: one for a user shares it among the user's client ids, one for a
client id among all its users, and one for both is for both. A default gives everybody a bucket of their own.
"""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from skep.base.errors import ErrorCode, KafkaError
from skep.security.principal import Principal
from skep.security.quotas.entities import CONTROLLER_MUTATION_RATE
from skep.security.quotas.leaky_bucket import LeakyBucket

UNNAMED = ""
"""In place of a user or a client id that a rule does not mention. No quota can be set for an empty name."""

Rule = tuple[str | None, str | None]
"""User and client id of a quota; None is the default."""
Sharers = tuple[str, str]
"""User and client id that share a bucket."""


class ClientQuotas(NamedTuple):
    """What applies to the requests of one client. Valid while ``version`` is that of the quotas."""

    version: int
    principal: Principal
    client_id: str | None
    producer: LeakyBucket | None
    consumer: LeakyBucket | None
    request: LeakyBucket | None
    mutations: LeakyBucket | None

    def is_for(self, version: int, principal: Principal, client_id: str | None) -> bool:
        return version == self.version and client_id == self.client_id and principal == self.principal


class Throttle:
    """What the quotas of its client mean for one request. ``ms`` is the throttle time for its response."""

    __slots__ = ("ms", "quotas")

    def __init__(self, quotas: ClientQuotas, wait_s: float) -> None:
        self.quotas = quotas
        self.ms = 0
        self.wait(wait_s)

    def wait(self, wait_s: float) -> None:
        """Throttles the client for at least so long."""
        self.ms = max(self.ms, round(wait_s * 1000))

    def refuses_records(self, now: float) -> bool:
        """Whether a fetch gets no records, because its client is over a quota already."""
        if self.quotas.consumer is not None:
            self.wait(self.quotas.consumer.wait_s(now))
        return self.ms > 0

    def fetch_limit(self, max_bytes: int) -> int:
        """Returns how large a response may be: half of what a consumer may use at once, at most ``max_bytes``.

        The last response counts on top of burst and rate, and together they must stay within 10 % over ten seconds.
        """
        consumer = self.quotas.consumer
        return max_bytes if consumer is None else min(max_bytes, max(1, int(consumer.burst / 2)))

    def consumed(self, size: int, now: float) -> None:
        """Counts the records of a response."""
        if self.quotas.consumer is not None:
            self.wait(self.quotas.consumer.use(size, now))

    def mutated(self, partitions: int, now: float, *, is_strict: bool) -> None:
        """Counts partitions that are to be created or deleted.

        Raises THROTTLING_QUOTA_EXCEEDED for a client that is over its quota already and knows that error (KIP-599).
        """
        mutations = self.quotas.mutations
        if mutations is None:
            return
        if is_strict and (wait_s := mutations.wait_s(now)):
            self.wait(wait_s)
            raise KafkaError(
                ErrorCode.throttling_quota_exceeded,
                f"the quota of {mutations.rate:g} partitions a second is exceeded "
                f"({CONTROLLER_MUTATION_RATE}); try again in {self.ms} ms",
            )
        wait_s = mutations.use(partitions, now)
        if not is_strict:
            self.wait(wait_s)


def rules(user: str, client_id: str) -> Iterator[tuple[Rule, Sharers]]:
    """Yields the rules that can apply, in the order of precedence, and who shares their bucket."""
    for named in (user, None):
        if client_id:
            yield (named, client_id), (user, client_id)
        yield (named, None), (user, client_id)
        yield (named, UNNAMED), (user, UNNAMED)
    if client_id:
        yield (UNNAMED, client_id), (UNNAMED, client_id)
    yield (UNNAMED, None), (UNNAMED, client_id)


def limit_of(
    table: Mapping[Rule, Mapping[str, float]], key: str, user: str, client_id: str
) -> tuple[float, Sharers] | None:
    """Returns the value of the quota ``key`` for this client, and who shares it; None if there is none."""
    for rule, sharers in rules(user, client_id):
        values = table.get(rule)
        if values is not None and key in values:
            return values[key], sharers
    return None
