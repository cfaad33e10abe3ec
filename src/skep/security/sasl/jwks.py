"""The public keys that tokens are signed with, fetched from the endpoint of the identity provider (RFC 7517).

The address comes from the operator's file and from nowhere else. It is https, or http on this machine for tests: not
``file:``, and no redirect is followed, so that no setting makes the broker read files or ask other servers
(CVE-2025-27817).
"""

import asyncio
import http.client
import json
import logging
import urllib.request
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from skep.base.clock import Clock
from skep.base.errors import OptionError
from skep.base.loop.supervisor import Supervisor

logger = logging.getLogger(__name__)

URL = "sasl.oauthbearer.jwks.endpoint.url"
MAX_BYTES = 1 << 20
TIMEOUT_S = 10.0
_UNREADABLE = (OSError, ValueError, LookupError, TypeError, RecursionError, http.client.HTTPException)
"""What a response that is cut off, or is no set of keys, may raise. The keys are asked for again."""
SHORTEST_INTERVAL_S = 10.0
"""How often keys are fetched at most because of tokens with keys that are not known. Anyone can send such tokens."""
ASYMMETRIC = ("RSA", "EC", "OKP")
"""The types of keys that are used. A shared key (``oct``) in a public place would let anyone sign."""
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


def check_url(url: str) -> None:
    """Raises OptionError for an address that keys are not fetched from."""
    parts = urlsplit(url)
    is_local = parts.scheme == "http" and parts.hostname in _LOOPBACK
    if not parts.hostname or not (parts.scheme == "https" or is_local):
        raise OptionError(f"{URL}={url}: expected an https address (http only on this machine)")


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


def fetch_keys(url: str) -> Any:
    """Returns the key set of the endpoint, as joserfc has it. Blocks. Raises OSError or ValueError."""
    from joserfc.errors import JoseError
    from joserfc.jwk import KeySet

    check_url(url)
    opener = urllib.request.build_opener(_NoRedirect, urllib.request.ProxyHandler({}))
    with opener.open(urllib.request.Request(url, headers={"Accept": "application/json"}), timeout=TIMEOUT_S) as reply:
        content = reply.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise ValueError(f"more than {MAX_BYTES} bytes of keys")
    found = json.loads(content)
    if not isinstance(found, dict) or not isinstance(found.get("keys"), list):
        raise ValueError("not a set of keys")
    keys = [key for key in found["keys"] if isinstance(key, dict) and key.get("kty") in ASYMMETRIC]
    usable, reason = [], "none is for signatures"
    for key in keys:
        if key.get("use", "sig") != "sig":
            continue
        try:
            KeySet.import_key_set({"keys": [key]})
            usable.append(key)
        except (JoseError, LookupError, TypeError, ValueError) as error:
            reason = f"{type(error).__name__}: {error}"  # one odd key must not keep the others out
    if not usable:
        raise ValueError(f"no usable key: {reason}")
    return KeySet.import_key_set({"keys": usable})


class Jwks:
    """Owns the keys in use. Until the first fetch has succeeded there are none, and no token is accepted.

    A failed fetch keeps the earlier keys and is repeated after a pause that doubles. Keys are fetched again when their
    time is up, and soon after a token with an unknown key.
    """

    def __init__(
        self,
        url: str,
        clock: Clock,
        *,
        refresh_ms: int,
        backoff_ms: int,
        max_backoff_ms: int,
        fetch: Callable[[str], Any] = fetch_keys,
    ) -> None:
        self._url, self._clock, self._fetch = url, clock, fetch
        self._refresh_ms, self._backoff_ms, self._max_backoff_ms = refresh_ms, backoff_ms, max_backoff_ms
        self._failures = 0
        self._fetched_at = float("-inf")
        self._is_wanted = asyncio.Event()
        self.keys: Any = None

    def start(self, supervisor: Supervisor) -> None:
        supervisor.spawn("JWKS", self._keep())

    def key_is_missing(self) -> None:
        """A token names a key that is not here. Perhaps it is new."""
        if self._clock.monotonic() - self._fetched_at >= SHORTEST_INTERVAL_S:
            self._is_wanted.set()

    async def _keep(self) -> None:
        while True:
            await self.refresh()
            self._is_wanted.clear()
            try:
                async with asyncio.timeout(self.pause_ms / 1000):
                    await self._is_wanted.wait()
            except TimeoutError:
                pass

    @property
    def pause_ms(self) -> int:
        """How long until the next fetch."""
        if not self._failures:
            return self._refresh_ms
        return int(min(self._backoff_ms * 2 ** (self._failures - 1), self._max_backoff_ms))

    async def refresh(self) -> None:
        self._fetched_at = self._clock.monotonic()
        try:
            self.keys = await asyncio.to_thread(self._fetch, self._url)
        except _UNREADABLE as error:
            self._failures = min(self._failures + 1, 30)
            if self._failures == 1 or self.pause_ms == self._max_backoff_ms:
                logger.warning("cannot fetch the keys of tokens from %s: %s; trying again", self._url, error)
        else:
            if self._failures:
                logger.info("fetched the keys of tokens from %s", self._url)
            self._failures = 0
