"""The security of a client: what its settings say, as a TLS context and logins.

``ClientSecurity.of`` takes the names of Java's clients and of librdkafka (``client_properties``). Objects with the same
settings are equal, can be pickled, and show no secret: Spark sends them to its tasks, and a client is shared by them.
"""

import ssl
from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

from skep.base.errors import OptionError
from skep.base.secret import Secret
from skep.client.errors import BadSetting
from skep.client.security.client_properties import check_known, is_security_setting, librdkafka_properties
from skep.client.security.sasl_exchange import SaslExchange
from skep.client.security.tls_context import client_context
from skep.wire.sasl.oauth_bearer import OAUTHBEARER
from skep.wire.sasl.sasl_client import MECHANISMS, password_client, token_client

if TYPE_CHECKING:
    from skep.client.security.oauth_tokens import TokenSource

PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")


class ClientSecurity:
    """Holds checked settings; whatever they lack is refused when it is made."""

    def __init__(self, settings: Mapping[str, str]) -> None:
        """``settings`` have librdkafka's names, and nothing but settings of security. Raises BadSetting."""
        self._settings = dict(settings)
        self.protocol = self._settings.get("security.protocol", "PLAINTEXT")
        if self.protocol not in PROTOCOLS:
            raise BadSetting(f"security.protocol={self.protocol}: expected one of {', '.join(PROTOCOLS)}")
        self.mechanism: str | None = None
        self._tokens: TokenSource | None = None
        if self.protocol.startswith("SASL_"):
            self.mechanism = self._settings.get("sasl.mechanisms", "").strip().upper()
            self._check_login(self.mechanism)
        if self.wants_tls:
            # Made at once, so that a wrong file is found where the settings are given.
            self.tls_context  # noqa: B018

    @classmethod
    def of(cls, properties: Mapping[str, Any]) -> Self:
        """Takes what it needs of a client's properties; the others are ignored. Raises BadSetting."""
        texts = {name: _text(value) for name, value in properties.items() if is_security_setting(name)}
        check_known(texts)
        return cls(librdkafka_properties(texts))

    @property
    def wants_tls(self) -> bool:
        return self.protocol.endswith("SSL")

    @cached_property
    def tls_context(self) -> ssl.SSLContext | None:
        """None without TLS. ``wrap_socket`` makes a ``TlsSocket``."""
        return client_context(self._settings) if self.wants_tls else None

    def login(self, address: str) -> SaslExchange | None:
        """Begins the exchange of one connection; None without SASL.

        It may ask an endpoint for a token: on an event loop it belongs in a thread.
        """
        if self.mechanism is None:
            return None
        if self._tokens is not None:
            return SaslExchange(self.mechanism, "by token", token_client(self._tokens.token()), address)
        user = self._settings["sasl.username"]
        client = password_client(self.mechanism, user, Secret(self._settings["sasl.password"]))
        return SaslExchange(self.mechanism, f"of user '{user}'", client, address)

    def _check_login(self, mechanism: str) -> None:
        if not mechanism:
            raise BadSetting(f"security.protocol={self.protocol} needs sasl.mechanism: one of {', '.join(MECHANISMS)}")
        if mechanism not in MECHANISMS:
            raise BadSetting(f"sasl.mechanism={mechanism}: expected one of {', '.join(MECHANISMS)}")
        if mechanism == OAUTHBEARER:
            # Imported here: it imports a client of HTTP.
            from skep.client.security.oauth_tokens import TokenSource

            self._tokens = TokenSource(self._settings)
            return
        for name in ("sasl.username", "sasl.password"):
            if not self._settings.get(name):
                raise BadSetting(f"sasl.mechanism={mechanism} needs {name}, or both in sasl.jaas.config")
        try:
            password_client(mechanism, self._settings["sasl.username"], Secret(self._settings["sasl.password"]))
        except OptionError as error:
            raise BadSetting(str(error)) from None

    def __repr__(self) -> str:
        shown = [self.protocol]
        if self.mechanism is not None:
            shown += [self.mechanism, self._settings.get("sasl.username", "")]
        return f"ClientSecurity({', '.join(filter(None, shown))})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ClientSecurity) and self._settings == other._settings

    def __hash__(self) -> int:
        return hash(frozenset(self._settings.items()))

    def __reduce__(self) -> tuple[type["ClientSecurity"], tuple[dict[str, str]]]:
        return ClientSecurity, (self._settings,)


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


PLAINTEXT = ClientSecurity({})
