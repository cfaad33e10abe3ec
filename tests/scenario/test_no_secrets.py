"""Nothing a broker writes, answers or shows contains a secret: not its log at DEBUG, its files, its options, its list
of arguments, and not what it says of a crash."""

import asyncio
import logging
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from skep.base.errors import KafkaError
from skep.base.jaas import parse_jaas
from skep.base.reserved_port import ReservedPort
from skep.base.secret import Secret
from skep.cli.users.user_admin import remove_mechanisms, set_password
from skep.client.cluster_client import ClusterClient
from skep.client.errors import ClientError
from skep.client.security.client_security import ClientSecurity
from skep.security.sasl.password_checks import PasswordChecks
from skep.security.sasl.plain_mechanism import PlainMechanism
from skep.security.users import Users
from skep.testing import EmbeddedBroker
from skep.wire.apis import API_VERSIONS, DESCRIBE_CONFIGS, DESCRIBE_USER_SCRAM_CREDENTIALS
from skep.wire.sasl.oauth_bearer import parse_bearer
from skep.wire.sasl.password_hash import hash_password
from skep.wire.sasl.plain import parse_plain
from skep.wire.sasl.sasl_client import password_client
from tests.waiting import wait_until

STORED, LISTED, OWN, WRONG, TOKEN = SECRETS = (
    "stored-sesame-1",
    "listed-sesame-2",
    "own-sesame-3",
    "wrong-sesame-4",
    "eyJ0b2tlbi1zZXNhbWUtNSI6MX0.e30.c2VzYW1l",
)
VERSIONS_BODY = {"client_software_name": "test", "client_software_version": "1"}
PLAIN_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM_MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"


class Running(NamedTuple):
    broker: EmbeddedBroker
    sasl: str
    plaintext: str
    answered: list[str]
    """What the broker has answered, and what our client has said of it."""


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    directory = tmp_path_factory.mktemp("secrets")
    (directory / "password").write_text(STORED)
    ports = [ReservedPort("127.0.0.1") for _ in range(2)]
    sasl, plaintext = (f"127.0.0.1:{port.number}" for port in ports)
    options = {
        "listeners": f"SASL_PLAINTEXT://{sasl},PLAINTEXT://{plaintext}",
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER",
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": f'{PLAIN_MODULE} required user_listed="{LISTED}";',
        "sasl.jaas.config": f'{SCRAM_MODULE} required username="own" password="{OWN}";',
        "sasl.oauthbearer.jwks.endpoint.url": "http://127.0.0.1:9/keys",
        "sasl.oauthbearer.expected.issuer": "https://idp.example",
        "sasl.oauthbearer.expected.audience": "skep",
        "skep.first.user": "stored",
        "skep.first.user.password.file": str(directory / "password"),
        "skep.log.level": "DEBUG",
    }
    with EmbeddedBroker(data_dir=directory / "data", options=options) as broker:
        yield Running(broker, sasl, plaintext, [])
    for port in ports:
        port.release()


def log_in(running: Running, mechanism: str, user: str, password: str) -> bool:
    properties = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism,
        "sasl.username": user,
        "sasl.password": password,
    }
    security = ClientSecurity.of(properties)
    if user != WRONG:  # our client may name its user
        running.answered.append(f"{security!r} {security}")
    try:
        with ClusterClient(running.sasl, timeout_s=5, security=security) as client:
            client.connect()
            running.answered.append(repr(client.metadata(())))
    except (ClientError, KafkaError) as error:
        running.answered.append("".join(traceback.format_exception(error)).replace(user, "USER"))
        return False
    return True


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_logins_that_succeed_and_that_fail(running: Running, mechanism: str) -> None:
    assert log_in(running, mechanism, "stored", STORED)
    assert not log_in(running, mechanism, "stored", WRONG)
    assert not log_in(running, mechanism, WRONG, STORED)  # typed into the wrong field
    assert log_in(running, mechanism, "listed", LISTED) == (mechanism == "PLAIN")
    see_no_secret(running)


def test_a_token_is_refused_without_being_shown(running: Running) -> None:
    from skep.client.connection import Connection
    from skep.wire.apis import SASL_AUTHENTICATE, SASL_HANDSHAKE

    host, _, port = running.sasl.partition(":")
    with Connection(host, int(port), client_id="test", timeout_s=10) as connection:
        connection.send(SASL_HANDSHAKE, {"mechanism": "OAUTHBEARER"}, version=1)
        running.answered.append(repr(connection.receive()))
        for message in (b"n,,\x01auth=Bearer " + TOKEN.encode() + b"\x01\x01", b"\x01"):
            connection.send(SASL_AUTHENTICATE, {"auth_bytes": message}, version=2)
            running.answered.append(repr(connection.receive()))
    assert "invalid_token" in running.answered[-2]
    see_no_secret(running)


def test_what_the_broker_tells_of_its_options_and_users(running: Running) -> None:
    with ClusterClient(running.plaintext) as client:
        [node] = client.nodes()
        resources = [
            {"resource_type": 4, "resource_name": name, "configuration_keys": None} for name in (str(node.node_id), "")
        ]
        body = {"resources": resources, "include_synonyms": True, "include_documentation": True}
        described = client.ask_node(node, DESCRIBE_CONFIGS, body)
        running.answered.append(repr(described))
        values = {config.name: config for config in described.results[0].configs}
        assert values["sasl.jaas.config"].value is None
        assert values["sasl.jaas.config"].is_sensitive
        running.answered.append(repr(client.ask_node(node, DESCRIBE_USER_SCRAM_CREDENTIALS, {"users": None})))
    assert "'stored'" in running.answered[-1]
    see_no_secret(running)


def see_no_secret(running: Running) -> None:
    pid = running.broker.pid
    seen = {
        "log": running.broker.log.encode(),
        "answers": "\n".join(running.answered).encode(),
        "arguments": Path(f"/proc/{pid}/cmdline").read_bytes(),
        "environment": Path(f"/proc/{pid}/environ").read_bytes(),
    }
    seen |= {str(path): path.read_bytes() for path in running.broker.data_dir.rglob("*") if path.is_file()}
    assert len(seen) > 5
    told = [(where, secret) for where, content in seen.items() for secret in SECRETS if secret.encode() in content]
    assert told == []


def test_a_crash_in_a_login_shows_no_secret(caplog: pytest.LogCaptureFixture) -> None:
    """Whatever is in reach of a login, shown as carelessly as can be."""
    users = Users(lambda: 1 // 0)  # type: ignore[arg-type, return-value]
    checks = PasswordChecks(users)
    held: list[Any] = [
        parse_plain(f"\0stored\0{STORED}".encode()),
        parse_bearer(f"n,,\x01auth=Bearer {TOKEN}\x01\x01".encode()),
        parse_jaas(f'{PLAIN_MODULE} required user_listed="{LISTED}" password="{OWN}";'),
        password_client("SCRAM-SHA-256", "stored", Secret(STORED)),
        password_client("PLAIN", "stored", Secret(STORED)),
        hash_password(Secret(STORED)),
        checks,
    ]
    mechanism = PlainMechanism(checks, {"listed": Secret(LISTED)})
    try:
        asyncio.run(mechanism.step(f"\0stored\0{STORED}".encode()))
    except ZeroDivisionError:
        logging.getLogger("test").exception("%s %r", held, held)
    checks.close()
    assert "ZeroDivisionError" in caplog.text
    assert [secret for secret in SECRETS if secret in caplog.text] == []


@pytest.mark.parametrize("is_deleted", [False, True])
def test_a_changed_or_deleted_credential_ends_the_connections_of_its_user(running: Running, is_deleted: bool) -> None:
    """Kafka leaves them open until they have to authenticate again."""
    properties = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "SCRAM-SHA-256",
        "sasl.username": "carol",
        "sasl.password": STORED,
    }
    with ClusterClient(running.plaintext) as admin:
        set_password(admin, "carol", Secret(STORED), ["SCRAM-SHA-256"])
        with ClusterClient(running.sasl, timeout_s=5, security=ClientSecurity.of(properties)) as client:
            [node] = client.nodes()
            connection = client.acquire_connection(node)
            assert not is_ended(connection)
            if is_deleted:
                remove_mechanisms(admin, "carol", ["SCRAM-SHA-256"])
            else:
                set_password(admin, "carol", Secret(LISTED), ["SCRAM-SHA-256"])
            wait_until(lambda: is_ended(connection), "the connection was not ended")
            connection.close()
    assert not log_in(running, "SCRAM-SHA-256", "carol", STORED)


def is_ended(connection: Any) -> bool:
    try:
        connection.send(API_VERSIONS, VERSIONS_BODY, version=3)
        connection.receive()
    except ClientError:
        return True
    return False
