"""Each SASL mechanism with each client, without TLS and with it: logins that succeed, and that fail clearly."""

import asyncio
import json
import re
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any, NamedTuple

import aiokafka
import aiokafka.abc
import confluent_kafka
import kafka
import pytest
from aiokafka.helpers import create_ssl_context
from joserfc import jwt
from joserfc.jwk import RSAKey
from kafka.net.sasl.oauth import AbstractTokenProvider

from skep.base.reserved_port import ReservedPort
from skep.security.tls.certificate_authority import CertificateAuthority
from skep.testing import EmbeddedBroker
from tests.waiting import wait_until

USER, PASSWORD = "admin", "a,b=c sesame"
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
PROTOCOLS = ("SASL_PLAINTEXT", "SASL_SSL")
PATIENCE_S = 30
MAX_BLOCK_MS = 2000
KEY = RSAKey.generate_key(2048, {"kid": "one"})


def token(audience: str = "skep") -> str:
    now = int(time.time())
    claims = {"sub": USER, "iss": "https://idp.example", "aud": audience, "iat": now, "exp": now + 600}
    return jwt.encode({"alg": "RS256", "kid": "one"}, claims, KEY)


class Server(NamedTuple):
    """A broker with both protocols."""

    broker: EmbeddedBroker
    addresses: dict[str, str]
    ca: str


@pytest.fixture(scope="module")
def identity_provider() -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps({"keys": [KEY.as_dict(private=False)]}).encode())

        def log_message(self, *_: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/keys"
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture(scope="module")
def server(identity_provider: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    directory = tmp_path_factory.mktemp("sasl")
    authority = CertificateAuthority.create(directory / "tls", days=30)
    pem = authority.sign_broker(["localhost", "127.0.0.1"], days=30)
    (directory / "password").write_text(PASSWORD + "\n")
    ports = {protocol: ReservedPort("127.0.0.1") for protocol in (*PROTOCOLS, "PLAINTEXT")}
    addresses = {protocol: f"127.0.0.1:{port.number}" for protocol, port in ports.items()}
    options = {
        "listeners": ",".join(f"{protocol}://{address}" for protocol, address in addresses.items()),
        "skep.log.level": "DEBUG",
        "sasl.enabled.mechanisms": ",".join(MECHANISMS),
        "skep.first.user": USER,
        "skep.first.user.password.file": str(directory / "password"),
        "ssl.keystore.location": str(pem),
        "ssl.truststore.location": str(authority.certificate_file),
        "sasl.oauthbearer.jwks.endpoint.url": identity_provider,
        "sasl.oauthbearer.expected.issuer": "https://idp.example",
        "sasl.oauthbearer.expected.audience": "skep",
    }
    with EmbeddedBroker(options=options) as broker:
        yield Server(broker, addresses, str(authority.certificate_file))
        assert PASSWORD not in broker.log
        assert "wrong-sesame" not in broker.log
    for port in ports.values():
        port.release()


class Login(NamedTuple):
    """What a client is told to log in with."""

    protocol: str
    mechanism: str
    password: str
    token: str
    ca: str


def produce_confluent(address: str, login: Login, topic: str) -> None:
    errors: list[Any] = []
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": address,
            "security.protocol": login.protocol,
            "sasl.mechanism": login.mechanism,
            "sasl.username": USER,
            "sasl.password": login.password,
            "ssl.ca.location": login.ca,
            "error_cb": errors.append,
            "log_level": 0,
        }
        | ({"oauth_cb": lambda _: (login.token, time.time() + 300)} if login.mechanism == "OAUTHBEARER" else {})
    )
    producer.produce(topic, b"egg", on_delivery=lambda error, _: errors.append(error) if error else None)
    deadline = time.monotonic() + PATIENCE_S
    while producer.flush(0.1) and time.monotonic() < deadline:
        if any("uthentication" in str(error) for error in errors):
            break
    if len(producer):
        producer.purge()
        producer.flush(1)
        raise AssertionError(str(errors))


def produce_kafka_python(address: str, login: Login, topic: str) -> None:
    class Provider(AbstractTokenProvider):
        def token(self) -> str:
            return login.token

    by_token = login.mechanism == "OAUTHBEARER"
    producer = kafka.KafkaProducer(
        bootstrap_servers=address,
        security_protocol=login.protocol,
        sasl_mechanism=login.mechanism,
        sasl_plain_username=None if by_token else USER,
        sasl_plain_password=None if by_token else login.password,
        sasl_oauth_token_provider=Provider() if by_token else None,
        ssl_cafile=login.ca,
        max_block_ms=MAX_BLOCK_MS,
        bootstrap_timeout_ms=MAX_BLOCK_MS if login.password != PASSWORD else 30_000,
    )
    producer.send(topic, b"egg").get(timeout=PATIENCE_S)
    producer.close()


def produce_aiokafka(address: str, login: Login, topic: str) -> None:
    class Provider(aiokafka.abc.AbstractTokenProvider):
        async def token(self) -> str:
            return login.token

    async def produce() -> None:
        producer = aiokafka.AIOKafkaProducer(
            bootstrap_servers=address,
            security_protocol=login.protocol,
            sasl_mechanism=login.mechanism,
            sasl_plain_username=USER,
            sasl_plain_password=login.password,
            sasl_oauth_token_provider=Provider() if login.mechanism == "OAUTHBEARER" else None,
            ssl_context=create_ssl_context(cafile=login.ca) if login.protocol == "SASL_SSL" else None,
        )
        async with producer:
            await producer.send_and_wait(topic, b"egg")

    asyncio.run(produce())


def produce_kcat(address: str, login: Login, topic: str) -> None:
    settings = {
        "security.protocol": login.protocol,
        "sasl.mechanism": login.mechanism,
        "sasl.username": USER,
        "sasl.password": login.password,
        "ssl.ca.location": login.ca,
        "message.timeout.ms": "5000",
    }
    if login.mechanism == "OAUTHBEARER":
        settings["enable.sasl.oauthbearer.unsecure.jwt"] = "true"
        settings["sasl.oauthbearer.config"] = f"principal={USER}"
    options = [part for name, value in settings.items() for part in ("-X", f"{name}={value}")]
    run = subprocess.run(
        ["kcat", "-b", address, "-P", "-t", topic, "-p", "0", *options], input=b"egg\n", capture_output=True, timeout=60
    )
    if run.returncode:
        raise AssertionError(run.stderr.decode())


CLIENTS: dict[str, Callable[[str, Login, str], None]] = {
    "confluent": produce_confluent,
    "kafka-python": produce_kafka_python,
    "aiokafka": produce_aiokafka,
    "kcat": produce_kcat,
}
LOGINS = [(client, mechanism) for client in CLIENTS for mechanism in MECHANISMS]
LOGINS.remove(("kcat", "OAUTHBEARER"))
"""kcat makes only unsigned tokens by itself, and these are refused."""


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize(("client", "mechanism"), LOGINS)
def test_a_client_logs_in(server: Server, topic: str, client: str, mechanism: str, protocol: str) -> None:
    login = Login(protocol, mechanism, PASSWORD, token(), server.ca)
    CLIENTS[client](server.addresses[protocol], login, topic)


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("client", CLIENTS)
def test_a_client_with_a_wrong_password_or_token_is_told_so(
    server: Server, topic: str, client: str, mechanism: str, caplog: pytest.LogCaptureFixture
) -> None:
    """kafka-python and aiokafka write it to their log, and raise that there is no broker.

    aiokafka does not read the failure of RFC 7628: it goes on as if the token were accepted, and is disconnected.
    """
    login = Login("SASL_PLAINTEXT", mechanism, "wrong-sesame", token("another-service"), server.ca)
    with pytest.raises(Exception, match=r".") as caught:
        CLIENTS[client](server.addresses["SASL_PLAINTEXT"], login, topic)
    told = f"{caught.value} {caplog.text}"
    if (client, mechanism) != ("aiokafka", "OAUTHBEARER"):
        assert re.search("authentication (failed|error|failure)|SaslAuthenticationFailed", told, re.IGNORECASE), told
    assert "wrong-sesame" not in told


def test_the_log_says_which_logins_failed_and_no_secret(server: Server, topic: str) -> None:
    login = Login("SASL_PLAINTEXT", "SCRAM-SHA-256", "wrong-sesame", "", server.ca)
    with pytest.raises(AssertionError):
        produce_confluent(server.addresses["SASL_PLAINTEXT"], login, topic)
    wait_until(lambda: "SCRAM-SHA-256: user 'admin': wrong password" in server.broker.log, "the line in the log")
