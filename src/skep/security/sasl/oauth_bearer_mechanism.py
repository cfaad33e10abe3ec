"""OAUTHBEARER: the client shows a token of an identity provider (RFC 7628, KIP-768).

A token that is refused gets the JSON of the RFC as a challenge, and the login fails with the client's next message,
whatever it is. The session lasts as long as the token: a client that goes on later has to show another one (KIP-368).
"""

from skep.security.principal import Principal
from skep.security.sasl.mechanism import Authenticated, AuthenticationFailed, Step, check_authzid
from skep.security.sasl.token_validator import TokenRefused, TokenValidator
from skep.wire.sasl.oauth_bearer import FAILED, OAUTHBEARER, parse_bearer
from skep.wire.sasl.sasl_error import SaslError


class OAuthBearerMechanism:
    """Extensions that the client adds to its token are ignored."""

    name = OAUTHBEARER

    def __init__(self, validator: TokenValidator) -> None:
        self._validator = validator
        self._is_used = False
        self._refusal: str | None = None

    def step(self, token: bytes) -> Step:
        if self._refusal is not None:
            reason, self._refusal = self._refusal, None
            raise AuthenticationFailed(OAUTHBEARER, reason)
        if self._is_used:
            raise AuthenticationFailed(OAUTHBEARER, "a message after the end of the login")
        self._is_used = True
        try:
            login = parse_bearer(token)
        except SaslError as error:
            raise AuthenticationFailed(OAUTHBEARER, str(error)) from None
        try:
            bearer = self._validator.validate(login.token)
        except TokenRefused as error:
            self._refusal = str(error)
            return FAILED
        check_authzid(OAUTHBEARER, login.authzid, bearer.subject)
        return Authenticated(Principal(bearer.subject), b"", bearer.expires_at_ms)
