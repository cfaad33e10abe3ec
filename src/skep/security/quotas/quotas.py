"""The quotas of this broker: follows the image, and keeps what clients have used.

A connection keeps the quotas of its client (``ClientQuotas``), and asks again when ``version`` has changed.

A bucket outlives the connections of its client, so nobody gets more by connecting again. Empty ones are dropped when
there are twice as many as there were after the last time, and there are ``MAX_BUCKETS`` at most: further clients, say
one that has another client id in each request, share a bucket for each quota and rate.
"""

import ipaddress
from collections.abc import Callable, Hashable, Mapping
from typing import NamedTuple

from skep.base.clock import Clock
from skep.base.config.security_config import SecurityConfig
from skep.metadata.cluster_image import NO_ENTRIES, QUOTAS, ClusterImage, Fields
from skep.security.principal import Principal
from skep.security.quotas.client_quotas import UNNAMED, ClientQuotas, Rule, limit_of
from skep.security.quotas.entities import (
    CLIENT_ID,
    CONNECTION_CREATION_RATE,
    CONSUMER_BYTE_RATE,
    CONTROLLER_MUTATION_RATE,
    IP,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
    USER,
    addresses_of,
    entity_of,
    values_of,
)
from skep.security.quotas.leaky_bucket import LeakyBucket

MAX_BUCKETS = 100_000
FIRST_SWEEP = 1000
SWEEP_AT_MOST_EVERY_S = 1.0
LONGEST_CONNECTION_WAIT_S = 1.0
"""Further connections are closed. A client gives up after a few seconds and connects again: if all had to wait for
longer than that, the broker would serve only those that have given up."""
BURST_SHARE = 1 / 20
"""Of a window, for rates of bytes and the share of time: with more, ten seconds could not be within 10 %."""


class Windows(NamedTuple):
    """Seconds of ``quota.window.*`` and of ``controller.quota.window.*``."""

    sample_s: float = 1.0
    clients_s: float = 10.0
    mutations_s: float = 11.0

    @classmethod
    def of(cls, config: SecurityConfig) -> "Windows":
        return cls(
            config.quota_window_size_seconds,
            (config.quota_window_num - 1) * config.quota_window_size_seconds,
            config.controller_quota_window_num * config.controller_quota_window_size_seconds,
        )

    def burst(self, key: str, rate: float) -> float:
        """Returns how much may be used at once after a time without use."""
        if key == CONTROLLER_MUTATION_RATE:
            return self.mutations_s * rate
        if key == CONNECTION_CREATION_RATE:
            return max(1.0, self.sample_s * rate)
        return self.clients_s * BURST_SHARE * rate


class Quotas:
    """Owns the buckets. ``version`` changes with the quotas, and when buckets were dropped."""

    def __init__(self, clock: Clock, windows: Windows) -> None:
        self._clock = clock
        self.windows = windows
        self.version = 0
        self.limits_clients = False
        """Whether there is a quota for a user or a client id."""
        self.on_change: Callable[[], None] = lambda: None
        """Called when quotas have changed."""
        self._entries: Mapping[str, Fields] = NO_ENTRIES
        self._clients: dict[Rule, Mapping[str, float]] = {}
        self._addresses: dict[str | None, float] = {}
        self._buckets: dict[Hashable, LeakyBucket] = {}
        self._sweep_at = FIRST_SWEEP
        self._swept = clock.monotonic()

    def image_changed(self, image: ClusterImage) -> None:
        entries = image.entries_of(QUOTAS)
        if entries is self._entries:
            return
        self._entries = entries
        self._clients, self._addresses = {}, {}
        for name, fields in entries.items():
            entity, values = entity_of(name), values_of(fields)
            if IP in entity:
                rate, host = values.get(CONNECTION_CREATION_RATE), entity[IP]
                if rate is not None:
                    given = None if host is None else canonical_address(host)
                    self._addresses.update(dict.fromkeys(addresses_of(fields) or (given,), rate))
            else:
                self._clients[entity.get(USER, UNNAMED), entity.get(CLIENT_ID, UNNAMED)] = values
        self.version += 1
        self.limits_clients = bool(self._clients)
        # A fetch that waits has buckets of quotas that may not exist any more.
        for bucket in self._buckets.values():
            bucket.is_retired = True
        if not entries:
            self._buckets.clear()
        self.on_change()

    def of(self, principal: Principal, client_id: str | None) -> ClientQuotas:
        """Returns what applies to requests of ``principal`` with this client id."""
        now = self._clock.monotonic()
        self._sweep(now)
        return ClientQuotas(
            self.version,
            principal,
            client_id,
            *(
                self._client_bucket(key, principal.name, client_id or UNNAMED, now)
                for key in (PRODUCER_BYTE_RATE, CONSUMER_BYTE_RATE, REQUEST_PERCENTAGE, CONTROLLER_MUTATION_RATE)
            ),
        )

    def _client_bucket(self, key: str, user: str, client_id: str, now: float) -> LeakyBucket | None:
        found = limit_of(self._clients, key, user, client_id)
        if found is None:
            return None
        rate, sharers = found
        return self._bucket(key, sharers, rate, now)

    def connection_wait_s(self, host: str, general: Mapping[str, float]) -> float | None:
        """Counts a new connection. Returns how long it has to wait before its first request is read.

        Returns None if that is longer than ``LONGEST_CONNECTION_WAIT_S``. The connection is not counted then.

        ``general`` are the rates for all connections of the broker, or of a listener, by any name.
        """
        if not self._addresses and not general:
            return 0.0
        now = self._clock.monotonic()
        self._sweep(now)
        buckets = [self._bucket(CONNECTION_CREATION_RATE, name, rate, now) for name, rate in general.items()]
        address = canonical_address(host)
        rate = self._addresses.get(address, self._addresses.get(None))
        if rate is not None:
            buckets.append(self._bucket(IP, address, rate, now))
        wait_s = max((bucket.wait_s(now, 1) for bucket in buckets), default=0.0)
        if wait_s > LONGEST_CONNECTION_WAIT_S:
            return None
        for bucket in buckets:
            bucket.use(1, now)
        return wait_s

    def _bucket(self, key: str, sharers: Hashable, rate: float, now: float) -> LeakyBucket:
        place = key, sharers
        bucket = self._buckets.get(place)
        if bucket is None and len(self._buckets) >= MAX_BUCKETS:
            # Not one for all rates: the bucket would change between them, and each change to a lower one forgives.
            place = key, rate
            bucket = self._buckets.get(place)
        burst = self.windows.burst(key if key != IP else CONNECTION_CREATION_RATE, rate)
        if bucket is None:
            bucket = self._buckets[place] = LeakyBucket(rate, burst, now)
        elif bucket.is_retired or bucket.rate != rate:
            bucket.change(rate, burst, now)
        return bucket

    def _sweep(self, now: float) -> None:
        """Drops empty buckets. Connections may still have them, so all have to ask again."""
        if len(self._buckets) < self._sweep_at or now - self._swept < SWEEP_AT_MOST_EVERY_S:
            return
        self._swept = now
        self._buckets = {place: bucket for place, bucket in self._buckets.items() if not bucket.is_empty(now)}
        self._sweep_at = min(MAX_BUCKETS, max(FIRST_SWEEP, 2 * len(self._buckets)))
        self.version += 1


def canonical_address(host: str) -> str:
    """Returns one spelling for all of an address; an IPv4 address in IPv6 is that IPv4 address."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    mapped = getattr(address, "ipv4_mapped", None)
    return str(mapped or address)
