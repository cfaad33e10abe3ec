"""What a client may do before it has authenticated, and what its session is worth afterwards."""

import struct
import time
from collections.abc import Iterator

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from skep.base.errors import ErrorCode
from skep.wire import apis
from tests.raw_client import RawClient
from tests.scenario.listening_broker import ListeningBroker

PATIENCE_S = 30.0
PROTOCOLS = {"OPEN": "PLAINTEXT", "ASKED": "SASL_PLAINTEXT", "SHORT": "SASL_PLAINTEXT", "SEALED": "SASL_SSL"}
JAAS = (
    "org.apache.kafka.common.security.plain.PlainLoginModule required "
    'user_ann="wonderland" user_bob="builder" user_crowd="many";'
)
OPTIONS = {
    "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512",
    **{f"listener.name.{name}.plain.sasl.jaas.config": JAAS for name in ("asked", "short", "sealed")},
    "listener.name.short.connections.max.reauth.ms": "1500",
    "sasl.server.max.receive.size": "2000",
    "connection.failed.authentication.delay.ms": "20",
    "skep.max.connections.per.principal": "3",
    "skep.handshake.timeout.ms": "2000",
}


@pytest.fixture(scope="module")
def listening(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ListeningBroker]:
    listening = ListeningBroker(tmp_path_factory.mktemp("sasl") / "ca", PROTOCOLS, OPTIONS)
    try:
        listening.broker.start()
        yield listening
    finally:
        listening.stop()


@pytest.fixture
def client(listening: ListeningBroker) -> Iterator[RawClient]:
    with RawClient(listening.at("ASKED")) as client:
        yield client


def wait_for_log(listening: ListeningBroker, text: str, since: int = 0) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while text not in listening.broker.log[since:]:
        assert time.monotonic() < deadline, f"{text!r} is not in the log:\n{listening.broker.log[since:]}"
        time.sleep(0.02)


def handshake(client: RawClient, mechanism: str = "PLAIN") -> ErrorCode:
    return client.ask(apis.SASL_HANDSHAKE, 1, mechanism=mechanism).error_code


def authenticate(client: RawClient, user: str, password: str, version: int = 2):
    token = f"\0{user}\0{password}".encode()
    return client.ask(apis.SASL_AUTHENTICATE, version, auth_bytes=token)


def log_in(client: RawClient, user: str = "ann", password: str = "wonderland") -> None:
    assert handshake(client) is ErrorCode.none
    assert authenticate(client, user, password).error_code is ErrorCode.none


def settings(listening: ListeningBroker, listener: str, protocol: str, password: str) -> dict[str, object]:
    given = {"sasl_username": "ann", "sasl_password": password, "sasl_mechanism": "PLAIN"}
    return {**listening.client(listener, protocol, **given), "log_level": 0}


@pytest.mark.parametrize(("listener", "protocol"), [("ASKED", "SASL_PLAINTEXT"), ("SEALED", "SASL_SSL")])
def test_a_password_opens_the_listener(listening: ListeningBroker, listener: str, protocol: str) -> None:
    admin = AdminClient(settings(listening, listener, protocol, "wonderland"))
    [node] = admin.list_topics(timeout=PATIENCE_S).brokers.values()
    assert f"{node.host}:{node.port}" == listening.at(listener)
    with pytest.raises(KafkaException):
        AdminClient(settings(listening, listener, protocol, "wunderland")).list_topics(timeout=1.0)


@pytest.mark.parametrize("version", [0, 1, 2])
def test_after_a_login_everything_is_served(client: RawClient, version: int) -> None:
    assert client.ask(apis.API_VERSIONS, 0).error_code is ErrorCode.none
    response = client.ask(apis.SASL_HANDSHAKE, 1, mechanism="PLAIN")
    assert (response.error_code, list(response.mechanisms)) == (ErrorCode.none, ["PLAIN", "SCRAM-SHA-512"])
    assert authenticate(client, "ann", "wonderland", version).error_code is ErrorCode.none
    assert client.ask(apis.METADATA, 1, topics=None).brokers
    client.close()


def test_other_requests_of_strangers_are_not_even_decoded(listening: ListeningBroker, client: RawClient) -> None:
    since = len(listening.broker.log)
    client.send(apis.METADATA, 1, topics=None)
    assert client.is_closed()
    wait_for_log(listening, "Metadata is refused: the client has not authenticated", since)


def test_a_large_request_of_a_stranger_is_refused(listening: ListeningBroker, client: RawClient) -> None:
    since = len(listening.broker.log)
    client.socket.sendall(struct.pack(">ih", 2001, 36))
    assert client.is_closed()
    wait_for_log(listening, "at most 2000 are allowed (sasl.server.max.receive.size)", since)


def test_a_large_request_after_the_login_is_served(client: RawClient) -> None:
    log_in(client)
    names = [{"name": f"{number:0200}"} for number in range(100)]
    assert len(client.ask(apis.METADATA, 4, topics=names, allow_auto_topic_creation=False).topics) == 100
    client.close()


def test_requests_without_end_are_no_login(client: RawClient) -> None:
    with pytest.raises(ConnectionError):
        for _ in range(30):
            client.ask(apis.API_VERSIONS, 0)


@pytest.mark.parametrize(("user", "password"), [("ann", "builder"), ("nobody", "wonderland")])
def test_a_failure_does_not_say_why(listening: ListeningBroker, client: RawClient, user: str, password: str) -> None:
    handshake(client)
    response = authenticate(client, user, password)
    assert response.error_code is ErrorCode.sasl_authentication_failed
    assert response.error_message == "Authentication failed with SASL mechanism PLAIN: invalid credentials"
    assert client.is_closed()
    # Anywhere in the log: lines with the same reason are limited, and a test before this one may have caused them.
    wait_for_log(listening, "authentication failed, PLAIN: ", 0)
    assert password not in listening.broker.log


def test_an_unknown_mechanism_gets_the_list_and_the_end(client: RawClient) -> None:
    response = client.ask(apis.SASL_HANDSHAKE, 1, mechanism="GSSAPI")
    assert response.error_code is ErrorCode.unsupported_sasl_mechanism
    assert list(response.mechanisms) == ["PLAIN", "SCRAM-SHA-512"]
    assert client.is_closed()


def test_a_login_without_a_handshake_is_illegal(client: RawClient) -> None:
    assert authenticate(client, "ann", "wonderland").error_code is ErrorCode.illegal_sasl_state
    assert client.is_closed()


def test_where_nobody_authenticates_a_login_is_illegal(listening: ListeningBroker) -> None:
    with RawClient(listening.at("OPEN")) as client:
        assert handshake(client) is ErrorCode.illegal_sasl_state
        assert authenticate(client, "ann", "wonderland").error_code is ErrorCode.illegal_sasl_state
        assert client.ask(apis.METADATA, 1, topics=None).brokers


def test_a_session_without_an_end_is_not_renewed(client: RawClient) -> None:
    log_in(client)
    assert handshake(client) is ErrorCode.illegal_sasl_state
    assert client.is_closed()


def test_a_session_is_renewed_or_ends(listening: ListeningBroker) -> None:
    since = len(listening.broker.log)
    with RawClient(listening.at("SHORT")) as client:
        assert handshake(client) is ErrorCode.none
        response = authenticate(client, "ann", "wonderland")
        assert response.session_lifetime.total_seconds() == 1.5
        log_in(client)
        assert client.ask(apis.METADATA, 1, topics=None).brokers
        # The session ends while the client only asks for versions, which needs none.
        deadline = time.monotonic() + PATIENCE_S
        closed = False
        while not closed and time.monotonic() < deadline:
            try:
                client.ask(apis.METADATA, 1, topics=None)
            except OSError:
                closed = True
        assert closed
    wait_for_log(listening, "Metadata is refused: its session has ended (KIP-368)", since)


def test_nobody_becomes_somebody_else(listening: ListeningBroker) -> None:
    with RawClient(listening.at("SHORT")) as client:
        log_in(client)
        assert handshake(client) is ErrorCode.none
        assert authenticate(client, "bob", "builder").error_code is ErrorCode.sasl_authentication_failed
        assert client.is_closed()


def test_connections_of_a_principal_are_limited(listening: ListeningBroker) -> None:
    since = len(listening.broker.log)
    clients = [RawClient(listening.at("ASKED")) for _ in range(4)]
    try:
        for client in clients[:3]:
            log_in(client, "crowd", "many")
        handshake(clients[3])
        with pytest.raises(ConnectionError):
            authenticate(clients[3], "crowd", "many")
    finally:
        for client in clients:
            client.close()
    wait_for_log(listening, "User:crowd has 3 connections (skep.max.connections.per.principal)", since)


def test_who_says_nothing_is_hung_up_on(listening: ListeningBroker, client: RawClient) -> None:
    since = len(listening.broker.log)
    assert client.is_closed()
    wait_for_log(listening, "it did not authenticate in time (skep.handshake.timeout.ms)", since)
