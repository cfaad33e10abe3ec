"""Whether a token (JWT, RFC 7519) says who its bearer is. What is not certain is refused.

A token counts if a key of the identity provider has signed it with an asymmetric algorithm, if it is for this cluster
(``aud``), from the expected issuer (``iss``), and if its time has come and is not over. An issuer and an audience have
to be set: without them, any token of the same provider, issued for any other service, would open this cluster.
"""

import math
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple, Protocol

from skep.base.clock import Clock
from skep.base.secret import Secret

ALGORITHMS = ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "Ed25519", "EdDSA"]
MAX_SUBJECT_BYTES = 255
LONGEST_LIFETIME_S = 10 * 365 * 86_400


class TokenRefused(Exception):
    """The text is for the log, and contains nothing of the token but the names of claims."""


class Bearer(NamedTuple):
    """Whom a token is about, and until when."""

    subject: str
    expires_at_ms: int


class Keys(Protocol):
    @property
    def keys(self) -> Any: ...

    def key_is_missing(self) -> None: ...


class TokenValidator:
    def __init__(
        self,
        keys: Keys,
        clock: Clock,
        *,
        issuer: str,
        audiences: Collection[str],
        subject_claim: str = "sub",
        skew_s: int = 30,
    ) -> None:
        assert issuer and audiences, "checked at start"
        self._keys, self._clock = keys, clock
        self._issuer, self._audiences = issuer, frozenset(audiences)
        self._subject_claim, self._skew_s = subject_claim, skew_s

    def validate(self, token: Secret) -> Bearer:
        """Raises TokenRefused."""
        claims = self._verified_claims(token)
        now_s = self._clock.now_ms() / 1000
        expires_s = _time(claims, "exp")
        if now_s >= expires_s + self._skew_s:
            raise TokenRefused("the token has expired")
        if expires_s > now_s + LONGEST_LIFETIME_S:
            raise TokenRefused("the claim exp is too far away")
        for name in ("iat", "nbf"):
            if (name == "iat" or name in claims) and _time(claims, name) > now_s + self._skew_s:
                raise TokenRefused(f"the claim {name} is in the future")
        if claims.get("iss") != self._issuer:
            raise TokenRefused("the issuer is not the expected one")
        if not self._is_for_us(claims.get("aud")):
            raise TokenRefused("the token is for another audience")
        return Bearer(self._subject(claims), int(expires_s * 1000))

    def _verified_claims(self, token: Secret) -> Mapping[str, Any]:
        from joserfc import jwt
        from joserfc.errors import InvalidKeyIdError, JoseError

        if self._keys.keys is None:
            raise TokenRefused("the keys of tokens have not been fetched yet")
        try:
            decoded = jwt.decode(token.reveal(), self._keys.keys, algorithms=ALGORITHMS)
        except InvalidKeyIdError:
            self._keys.key_is_missing()
            raise TokenRefused("no known key has signed the token") from None
        except (JoseError, ValueError, TypeError, KeyError, RecursionError) as error:
            raise TokenRefused(
                f"the token is malformed or not signed by a known key ({type(error).__name__})"
            ) from None
        if not isinstance(decoded.claims, dict):
            raise TokenRefused("the token has no claims")
        return decoded.claims

    def _is_for_us(self, audience: object) -> bool:
        if isinstance(audience, str):
            return audience in self._audiences
        return isinstance(audience, list) and any(isinstance(one, str) and one in self._audiences for one in audience)

    def _subject(self, claims: Mapping[str, Any]) -> str:
        subject = claims.get(self._subject_claim)
        if not isinstance(subject, str) or not subject.strip():
            raise TokenRefused(f"the claim {self._subject_claim} is missing or is no text")
        if len(subject.encode(errors="replace")) > MAX_SUBJECT_BYTES or not subject.isprintable():
            raise TokenRefused(f"the claim {self._subject_claim} is too long or not printable")
        return subject


def _time(claims: Mapping[str, Any], name: str) -> float:
    value = claims.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise TokenRefused(f"the claim {name} is missing or is no time")
    if not 0 <= value < 1 << 53:
        raise TokenRefused(f"the claim {name} is no time")
    return float(value)
