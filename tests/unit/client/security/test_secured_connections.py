"""Connections with TLS and SASL, blocking and on the event loop: what succeeds, and what each failure says."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trustme
import uvloop

from skep.client.connection import Connection
from skep.client.errors import ClientError, SecurityFailure, Unreachable
from skep.client.peer.peer import Peer
from skep.client.security.client_security import ClientSecurity
from skep.wire.apis import METADATA
from tests.unit.client.security.login_server import PASSWORD, USER, LoginServer, server_tls
from tests.waiting import wait_until

CA = trustme.CA()
OTHER_CA = trustme.CA()
CA_PEM = CA.cert_pem.bytes().decode()
LOGIN = {"sasl.mechanism": "PLAIN", "sasl.username": USER, "sasl.password": PASSWORD}
SCRAM = {**LOGIN, "sasl.mechanism": "SCRAM-SHA-256"}
TLS = {"security.protocol": "SSL", "ssl.ca.pem": CA_PEM}

Ask = Callable[[LoginServer, dict[str, str]], str]


def ask_blocking(server: LoginServer, settings: dict[str, str]) -> str:
    security = ClientSecurity.of(settings)
    with Connection("127.0.0.1", server.port, client_id="c", timeout_s=30, security=security) as connection:
        return str(connection.ask(METADATA, {"topics": []}).cluster_id)


def ask_on_the_loop(server: LoginServer, settings: dict[str, str]) -> str:
    async def ask() -> str:
        peer = Peer("127.0.0.1", server.port, client_id="c", timeout_s=30, security=ClientSecurity.of(settings))
        await peer.connect()
        response = await peer.ask(METADATA, {"topics": []})
        peer.close()
        return str(response.cluster_id)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(ask())


both = pytest.mark.parametrize("ask", [ask_blocking, ask_on_the_loop])


@both
@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
@pytest.mark.parametrize("has_tls", [False, True])
def test_a_login_comes_before_any_other_request(ask: Ask, mechanism: str, has_tls: bool) -> None:
    settings = {**LOGIN, "sasl.mechanism": mechanism, "security.protocol": "SASL_PLAINTEXT"}
    if has_tls:
        settings |= {"security.protocol": "SASL_SSL", "ssl.ca.pem": CA_PEM}
    with LoginServer(tls=server_tls(CA) if has_tls else None, mechanism=mechanism) as server:
        assert ask(server, settings) == "of-the-login-server"
        messages = 1 if mechanism == "PLAIN" else 2
        assert server.seen == ["ApiVersions", "SaslHandshake", *["SaslAuthenticate"] * messages, "Metadata"]


@both
def test_tls_alone_sends_no_login(ask: Ask) -> None:
    with LoginServer(tls=server_tls(CA)) as server:
        assert ask(server, TLS) == "of-the-login-server"
        assert server.seen == ["ApiVersions", "Metadata"]


@both
def test_the_clients_certificate_is_sent_from_files_and_inline(ask: Ask, tmp_path: Path) -> None:
    mine = OTHER_CA.issue_cert("client@skep.test")
    key, chain = mine.private_key_pem.bytes().decode(), mine.cert_chain_pems[0].bytes().decode()
    (tmp_path / "both.pem").write_text(key + chain)
    with LoginServer(tls=server_tls(CA, client_ca=OTHER_CA)) as server:
        for certificate in (
            {"ssl.keystore.location": str(tmp_path / "both.pem"), "ssl.keystore.type": "PEM"},
            {"ssl.certificate.pem": chain, "ssl.key.pem": key},
        ):
            assert ask(server, {**TLS, **certificate}) == "of-the-login-server"
        with pytest.raises(ClientError, match=r"certificate of the client|closed"):
            ask(server, TLS)


@both
@pytest.mark.parametrize(
    ("served", "settings", "words"),
    [
        ({}, {"ssl.ca.pem": OTHER_CA.cert_pem.bytes().decode()}, r"is not trusted .*: set ssl.ca.location"),
        ({"names": ["broker.test"]}, {}, "is for another host .*: connect by a name that is in it"),
    ],
    ids=["untrusted", "another host"],
)
def test_a_certificate_that_is_not_accepted(
    ask: Ask, served: dict[str, Any], settings: dict[str, str], words: str
) -> None:
    with LoginServer(tls=server_tls(CA, *served.get("names", []))) as server:
        with pytest.raises(SecurityFailure, match=words):
            ask(server, {**TLS, **settings})


@both
def test_the_host_is_not_checked_if_the_settings_say_so(ask: Ask) -> None:
    with LoginServer(tls=server_tls(CA, "broker.test")) as server:
        for algorithm in ("", "none"):
            settings = {**TLS, "ssl.endpoint.identification.algorithm": algorithm}
            assert ask(server, settings) == "of-the-login-server"


@both
def test_tls_at_a_port_without_it(ask: Ask) -> None:
    with LoginServer() as server, pytest.raises(ClientError, match="is it a port without TLS"):
        ask(server, TLS)


@both
def test_plaintext_at_a_port_of_tls(ask: Ask) -> None:
    with LoginServer(tls=server_tls(CA)) as server, pytest.raises(ClientError, match="does this port want TLS"):
        ask(server, {})


@both
@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
def test_a_wrong_password_is_an_error_without_it(ask: Ask, mechanism: str) -> None:
    settings = {**LOGIN, "sasl.mechanism": mechanism, "security.protocol": "SASL_PLAINTEXT"}
    with LoginServer(mechanism=mechanism) as server, pytest.raises(SecurityFailure) as refused:
        ask(server, {**settings, "sasl.password": "another-secret"})
    assert f"refused the login of user '{USER}' with {mechanism}" in str(refused.value)
    assert "another-secret" not in str(refused.value)


@both
def test_a_mechanism_that_the_broker_lacks_is_named_with_those_it_has(ask: Ask) -> None:
    settings = {**SCRAM, "security.protocol": "SASL_PLAINTEXT"}
    with LoginServer() as server, pytest.raises(SecurityFailure, match="SCRAM-SHA-256; it accepts PLAIN"):
        ask(server, settings)


def test_a_session_that_ends_is_renewed_before_the_next_request() -> None:
    security = ClientSecurity.of({**LOGIN, "security.protocol": "SASL_PLAINTEXT"})
    with (
        LoginServer(lifetime_ms=1) as server,
        Connection("127.0.0.1", server.port, client_id="c", timeout_s=30, security=security) as connection,
    ):
        for _ in range(3):
            wait_until(lambda: connection.is_expiring, "the session ends")
            connection.ask(METADATA, {"topics": []})
        login = ["SaslHandshake", "SaslAuthenticate"]
        assert server.seen == ["ApiVersions", *login, *[*login, "Metadata"] * 3]
        assert server.connections == 1


def test_responses_in_flight_survive_the_renewal_of_a_session() -> None:
    settings = {**SCRAM, "security.protocol": "SASL_SSL", "ssl.ca.pem": CA_PEM}
    security = ClientSecurity.of(settings)
    with (
        LoginServer(tls=server_tls(CA), mechanism="SCRAM-SHA-256", lifetime_ms=1) as server,
        Connection("127.0.0.1", server.port, client_id="c", timeout_s=30, security=security) as connection,
    ):
        for _ in range(3):
            wait_until(lambda: connection.is_expiring, "the session ends")
            connection.send(METADATA, {"topics": []})
        assert connection.in_flight == 3
        assert [connection.receive().cluster_id for _ in range(3)] == ["of-the-login-server"] * 3
        wait_until(lambda: connection.is_expiring, "the session ends")
        assert not connection.is_usable


def test_requests_on_the_loop_wait_for_the_renewal_of_a_session() -> None:
    settings = {**SCRAM, "security.protocol": "SASL_PLAINTEXT"}

    async def ask(server: LoginServer) -> None:
        peer = Peer("127.0.0.1", server.port, client_id="c", timeout_s=30, security=ClientSecurity.of(settings))
        await peer.connect()
        while server.seen.count("SaslHandshake") < 3:
            responses = await asyncio.gather(*(peer.ask(METADATA, {"topics": []}) for _ in range(5)))
            assert [response.cluster_id for response in responses] == ["of-the-login-server"] * 5
        peer.close()

    with LoginServer(mechanism="SCRAM-SHA-256", lifetime_ms=40) as server:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(ask(server))
        assert server.connections == 1
        logins = "".join(
            "h" if name == "SaslHandshake" else "a" if name == "SaslAuthenticate" else "." for name in server.seen
        )
        assert logins.count("haa") >= 2, "no other request came between the messages of a login"
        assert logins.count("h") - logins.count("haa") in (0, 1)


def test_a_broker_that_is_not_there_can_be_tried_again() -> None:
    server = LoginServer(tls=server_tls(CA))
    with server:
        pass
    with pytest.raises(Unreachable, match="no broker answers"):
        ask_blocking(server, TLS)
