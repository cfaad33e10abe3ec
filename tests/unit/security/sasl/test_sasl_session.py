"""SASL on one connection: the order of messages, and sessions that are renewed."""

import asyncio

import pytest

from skep.base.config.security_config import SecurityConfig
from skep.base.errors import ErrorCode, KafkaError
from skep.security.principal import Principal
from skep.security.sasl.mechanism import Authenticated, AuthenticationFailed
from skep.security.sasl.mechanisms import Mechanisms
from skep.security.sasl.sasl_session import SaslSession
from tests.manual_clock import ManualClock


class Echo:
    """Asks once, then believes the name that the client says."""

    def __init__(self, name: str, expires_at_ms: int | None = None) -> None:
        self.name = name
        self._expires_at_ms = expires_at_ms
        self._has_asked = False

    def step(self, token: bytes):
        if not self._has_asked:
            self._has_asked = True
            return b"who?"
        if token == b"nobody":
            raise AuthenticationFailed(self.name, "nobody")
        return self._later(token)

    async def _later(self, token: bytes) -> Authenticated:
        return Authenticated(Principal(token.decode()), b"hello", self._expires_at_ms)


class Connection:
    def __init__(self) -> None:
        self.seen: list[tuple[str, int]] = []

    def authenticated(self, principal: Principal, lifetime_ms: int) -> None:
        self.seen.append((principal.name, lifetime_ms))


class Scene:
    def __init__(self, max_reauth_ms: int = 0, expires_at_ms: int | None = None) -> None:
        self.connection = Connection()
        self.clock = ManualClock()
        mechanisms = Mechanisms({name: lambda n=name: Echo(n, expires_at_ms) for name in ("ONE", "TWO")})
        config = SecurityConfig(connections_max_reauth_ms=max_reauth_ms)
        self.session = SaslSession(mechanisms, self.connection, config, self.clock)

    def log_in(self, name: str, mechanism: str = "ONE") -> tuple[bytes, int]:
        self.session.handshake(mechanism)
        assert self.say(b"") == (b"who?", 0)
        return self.say(name.encode())

    def say(self, token: bytes) -> tuple[bytes, int]:
        return asyncio.run(self.session.authenticate(token))


def code_of(action, *arguments) -> ErrorCode:
    with pytest.raises(KafkaError) as raised:
        action(*arguments)
    return raised.value.code


def test_a_login_ends_with_a_principal():
    scene = Scene()
    assert scene.log_in("ann") == (b"hello", 0)
    assert scene.connection.seen == [("ann", 0)]


def test_messages_out_of_order_are_refused():
    scene = Scene()
    assert code_of(scene.say, b"x") is ErrorCode.illegal_sasl_state
    scene.session.handshake("ONE")
    assert code_of(scene.session.handshake, "ONE") is ErrorCode.illegal_sasl_state


def test_an_unknown_mechanism_is_refused():
    assert code_of(Scene().session.handshake, "GSSAPI") is ErrorCode.unsupported_sasl_mechanism


def test_a_session_without_an_end_is_not_renewed():
    scene = Scene()
    scene.log_in("ann")
    assert code_of(scene.session.handshake, "ONE") is ErrorCode.illegal_sasl_state


def test_a_session_is_renewed_by_the_same_principal_and_mechanism():
    scene = Scene(max_reauth_ms=5_000)
    assert scene.log_in("ann") == (b"hello", 5_000)
    assert code_of(scene.session.handshake, "TWO") is ErrorCode.unsupported_sasl_mechanism
    assert scene.log_in("ann") == (b"hello", 5_000)
    assert scene.connection.seen == [("ann", 5_000)] * 2
    with pytest.raises(AuthenticationFailed) as raised:
        scene.log_in("bob")
    assert "bob" not in str(raised.value)


def test_a_token_that_ends_ends_the_session():
    now = ManualClock().now_ms()
    assert Scene(expires_at_ms=now + 70).log_in("ann") == (b"hello", 70)
    assert Scene(max_reauth_ms=50, expires_at_ms=now + 70).log_in("ann") == (b"hello", 50)
    with pytest.raises(AuthenticationFailed):
        Scene(expires_at_ms=now - 1).log_in("ann")
