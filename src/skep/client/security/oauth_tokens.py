"""Tokens for OAUTHBEARER: from a file, or from an endpoint by client credentials (RFC 6749, section 4.4).

A token is asked for again when most of its life is over. The endpoint must be https, except on this machine: the
client's secret goes there. Redirects are not followed, for the same reason.
"""

import base64
import binascii
import ipaddress
import json
import ssl
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from skep.base.secret import Secret
from skep.client.errors import BadSetting, SecurityFailure, Unreachable

ENDPOINT = "sasl.oauthbearer.token.endpoint.url"
ID, SECRET, SCOPE = "sasl.oauthbearer.client.id", "sasl.oauthbearer.client.secret", "sasl.oauthbearer.scope"
TIMEOUT_S = 10.0
MAX_RESPONSE_BYTES = 1 << 20
RENEW_AT = 0.8
"""Of the life of a token."""


class _Token(NamedTuple):
    value: Secret
    renew_at: float
    """On the monotonic clock."""


class TokenSource:
    """Owns the last token. For several threads."""

    def __init__(self, settings: Mapping[str, str]) -> None:
        """``settings`` have the names of librdkafka. Raises BadSetting."""
        self._url = settings.get(ENDPOINT, "")
        self._id, self._secret = settings.get(ID, ""), Secret(settings.get(SECRET, ""))
        self._scope = settings.get(SCOPE, "")
        self._ca = settings.get("https.ca.location", "")
        self._lock = threading.Lock()
        self._token: _Token | None = None
        parts = urllib.parse.urlsplit(self._url)
        if not self._url:
            raise BadSetting(f"sasl.mechanism=OAUTHBEARER needs {ENDPOINT}: the address that gives out tokens")
        if parts.scheme == "file":
            self._file: Path | None = Path(urllib.parse.unquote(parts.path))
            return
        self._file = None
        if parts.scheme != "https" and not (parts.scheme == "http" and _is_here(parts.hostname or "")):
            raise BadSetting(f"{ENDPOINT}={self._url}: expected https:// or file://")
        if not self._id or not self._secret:
            raise BadSetting(f"sasl.mechanism=OAUTHBEARER needs {ID} and {SECRET}")

    def token(self) -> Secret:
        """Returns a token that is still good for a while. Raises Unreachable, or SecurityFailure for a refusal."""
        if self._file is not None:
            return self._read(self._file)
        with self._lock:
            if self._token is None or time.monotonic() >= self._token.renew_at:
                self._token = self._ask()
            return self._token.value

    def _read(self, path: Path) -> Secret:
        try:
            return Secret(path.read_text().strip())
        except OSError as error:
            raise SecurityFailure(f"{ENDPOINT}={self._url}: {error.strerror}") from None

    def _ask(self) -> _Token:
        form = {"grant_type": "client_credentials"} | ({"scope": self._scope} if self._scope else {})
        # RFC 6749, section 2.3.1: both are encoded as in a form before they are joined.
        who = f"{urllib.parse.quote_plus(self._id)}:{urllib.parse.quote_plus(self._secret.reveal())}"
        request = urllib.request.Request(
            self._url,
            urllib.parse.urlencode(form).encode(),
            {"Authorization": f"Basic {base64.b64encode(who.encode()).decode()}", "Accept": "application/json"},
        )
        try:
            with self._opener().open(request, timeout=TIMEOUT_S) as response:
                body = response.read(MAX_RESPONSE_BYTES)
        except urllib.error.HTTPError as error:
            raise SecurityFailure(
                f"{ENDPOINT}={self._url} gives no token to the client '{self._id}' (HTTP {error.code}): "
                f"check {ID} and {SECRET}"
            ) from None
        except OSError as error:
            reason = getattr(error, "reason", error)
            raise Unreachable(f"{ENDPOINT}={self._url} does not answer ({reason})") from None
        return self._parsed(body)

    def _opener(self) -> urllib.request.OpenerDirector:
        context = ssl.create_default_context(cafile=self._ca or None)
        return urllib.request.build_opener(urllib.request.HTTPSHandler(context=context), _NoRedirects())

    def _parsed(self, body: bytes) -> _Token:
        try:
            found = json.loads(body)
            value = found["access_token"]
            life_s = float(found.get("expires_in") or _life_s(value))
        except (ValueError, KeyError, TypeError, AttributeError):
            raise SecurityFailure(f"{ENDPOINT}={self._url} sent no access_token") from None
        return _Token(Secret(str(value)), time.monotonic() + max(0.0, life_s * RENEW_AT))


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        """Makes a redirect an HTTPError."""


def _is_here(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _life_s(token: str) -> float:
    """Returns how long a JWT is valid from now on, by its claim ``exp``; 0 for what has none."""
    try:
        claims = token.split(".")[1]
        return float(json.loads(base64.urlsafe_b64decode(claims + "=" * (-len(claims) % 4)))["exp"]) - time.time()
    except (ValueError, KeyError, IndexError, TypeError, binascii.Error):
        return 0.0
