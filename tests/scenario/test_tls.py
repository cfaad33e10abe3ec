"""TLS with real clients: who gets in, who does not and what the broker says of it, and new certificates."""

import datetime
import os
import signal
import socket
import ssl
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource

from skep.security.tls import certificate_authority
from skep.security.tls.certificate_authority import LOCAL_HOSTS, CertificateAuthority
from tests.scenario.listening_broker import HOST, ListeningBroker

PATIENCE_S = 30.0
API_VERSIONS_FRAME = struct.pack(">ihhih", 10, 18, 0, 1, -1)
PROTOCOLS = {"OPEN": "PLAINTEXT", "SECRET": "SSL", "PROVEN": "SSL"}
OPTIONS = {
    "listener.name.proven.ssl.client.auth": "required",
    "listener.name.proven.ssl.principal.mapping.rules": "RULE:^CN=(good|slow).*$/$1/L",
    "max.connections.per.ip.overrides": "127.0.0.9:2",
    "auto.create.topics.enable": "true",
}


@pytest.fixture(scope="module")
def listening(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ListeningBroker]:
    listening = ListeningBroker(tmp_path_factory.mktemp("tls") / "ca", PROTOCOLS, OPTIONS)
    try:
        listening.broker.start()
        yield listening
    finally:
        listening.stop()


def wait_for_log(listening: ListeningBroker, text: str, since: int = 0) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while text not in listening.broker.log[since:]:
        assert time.monotonic() < deadline, f"{text!r} is not in the log:\n{listening.broker.log[since:]}"
        time.sleep(0.02)


def round_trip(settings: dict[str, object], topic: str, values: list[bytes]) -> list[bytes]:
    """Produces and consumes. Raises if the client cannot connect."""
    AdminClient(settings).list_topics(timeout=PATIENCE_S)
    producer = Producer({**settings, "linger.ms": 0})
    for value in values:
        producer.produce(topic, value, partition=0)
    assert producer.flush(PATIENCE_S) == 0
    consumer = Consumer({**settings, "group.id": "g", "enable.auto.commit": False, "fetch.message.max.bytes": 8 << 20})
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        found: list[bytes] = []
        while len(found) < len(values):
            message = consumer.poll(PATIENCE_S)
            assert message is not None
            assert message.error() is None
            found.append(message.value())
        return found
    finally:
        consumer.close()


def tls_socket(listening: ListeningBroker, listener: str, **options: object) -> ssl.SSLSocket:
    context = ssl.create_default_context(cafile=str(listening.authority.certificate_file))
    for name, value in options.items():
        setattr(context, name, value)
    plain = socket.create_connection((HOST, listening.port(listener)), timeout=PATIENCE_S)
    return context.wrap_socket(plain, server_hostname="localhost")


def test_records_small_and_large_go_there_and_back(listening: ListeningBroker, topic: str) -> None:
    values = [os.urandom(size) for size in (10, 100_000, 900_000, 1, 900_000, 900_000, 900_000)]
    assert round_trip(listening.client("SECRET", "SSL"), topic, values) == values


def test_a_client_with_a_certificate_gets_in(listening: ListeningBroker, topic: str) -> None:
    settings = listening.client("PROVEN", "SSL", **listening.certificate("good"))
    assert round_trip(settings, topic, [b"egg"]) == [b"egg"]


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_two_versions_of_tls_are_served(listening: ListeningBroker, version: ssl.TLSVersion) -> None:
    with tls_socket(listening, "SECRET", maximum_version=version) as client:
        assert client.version() == version.name.replace("_", ".")


def test_a_client_learns_the_addresses_of_the_listener_it_uses(listening: ListeningBroker) -> None:
    for listener, settings in {
        "OPEN": listening.client("OPEN"),
        "SECRET": listening.client("SECRET", "SSL"),
        "PROVEN": listening.client("PROVEN", "SSL", **listening.certificate("good")),
    }.items():
        admin = AdminClient(settings)
        [node] = admin.list_topics(timeout=PATIENCE_S).brokers.values()
        assert f"{node.host}:{node.port}" == listening.at(listener)
        cluster = admin.describe_cluster(request_timeout=PATIENCE_S).result()
        assert [f"{one.host}:{one.port}" for one in cluster.nodes] == [listening.at(listener)]


def refused(settings: dict[str, object]) -> None:
    with pytest.raises(KafkaException):
        AdminClient({**settings, "log_level": 0}).list_topics(timeout=1.5)


def test_a_client_without_a_certificate_is_refused(listening: ListeningBroker) -> None:
    since = len(listening.broker.log)
    refused(listening.client("PROVEN", "SSL"))
    wait_for_log(listening, "it showed no certificate, which ssl.client.auth=required demands", since)


def test_a_client_whose_name_no_rule_maps_is_refused(listening: ListeningBroker) -> None:
    since = len(listening.broker.log)
    refused(listening.client("PROVEN", "SSL", **listening.certificate("stranger")))
    wait_for_log(listening, "no rule of ssl.principal.mapping.rules applies to the name in its certificate", since)


def test_a_client_of_another_authority_is_refused(listening: ListeningBroker, tmp_path: Path) -> None:
    since = len(listening.broker.log)
    other = CertificateAuthority.create(tmp_path / "other").sign_client("good")
    settings = {"ssl_certificate_location": str(other), "ssl_key_location": str(other)}
    refused(listening.client("PROVEN", "SSL", **settings))
    wait_for_log(listening, "its certificate is not accepted (", since)


def test_a_client_with_an_expired_certificate_is_refused(
    listening: ListeningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    since = len(listening.broker.log)
    monkeypatch.setattr(certificate_authority, "_TOLERATED_CLOCK_SKEW", datetime.timedelta(days=900))
    monkeypatch.setattr(certificate_authority, "check_days", lambda days: None)
    path = listening.authority.sign_client("slow", days=-1)
    refused(listening.client("PROVEN", "SSL", ssl_certificate_location=str(path), ssl_key_location=str(path)))
    wait_for_log(listening, "its certificate is not accepted (certificate has expired)", since)


def test_a_client_that_does_not_trust_the_broker_is_named_in_the_log(
    listening: ListeningBroker, tmp_path: Path
) -> None:
    since = len(listening.broker.log)
    other = CertificateAuthority.create(tmp_path / "other")
    refused({**listening.client("SECRET", "SSL"), "ssl.ca.location": str(other.certificate_file)})
    wait_for_log(listening, "it does not trust the ", since)


def test_a_broker_of_another_name_is_not_believed(listening: ListeningBroker) -> None:
    context = ssl.create_default_context(cafile=str(listening.authority.certificate_file))
    plain = socket.create_connection((HOST, listening.port("SECRET")), timeout=PATIENCE_S)
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        context.wrap_socket(plain, server_hostname="broker.example.org")


def test_plaintext_at_a_port_with_tls_is_told_in_the_log(listening: ListeningBroker) -> None:
    since = len(listening.broker.log)
    refused(listening.client("SECRET"))
    wait_for_log(listening, "it does not speak TLS, and this listener does", since)


def test_tls_at_a_plaintext_port_is_told_in_the_log(listening: ListeningBroker) -> None:
    since = len(listening.broker.log)
    refused(listening.client("OPEN", "SSL"))
    wait_for_log(listening, "it began a TLS handshake, and this listener has no TLS", since)


def test_half_a_handshake_holds_nobody_up(listening: ListeningBroker) -> None:
    with socket.create_connection((HOST, listening.port("SECRET")), timeout=PATIENCE_S) as half:
        half.sendall(b"\x16\x03\x01\x02\x00\x01")
        with tls_socket(listening, "SECRET") as other:
            assert other.version() is not None


def test_connections_of_one_address_are_limited(listening: ListeningBroker) -> None:
    def connect(listener: str) -> socket.socket:
        return socket.create_connection(
            (HOST, listening.port(listener)), timeout=PATIENCE_S, source_address=("127.0.0.9", 0)
        )

    since = len(listening.broker.log)
    with connect("OPEN") as first, connect("OPEN") as second:
        # Each has a response, so both are counted before the next one comes, on another listener.
        for client in (first, second):
            client.sendall(API_VERSIONS_FRAME)
            assert len(client.recv(4)) == 4
        with connect("SECRET") as third:
            assert third.recv(1) == b""
    wait_for_log(listening, "2 connections of this address are open (max.connections.per.ip)", since)


def test_a_new_certificate_is_used_and_open_connections_live_on(listening: ListeningBroker) -> None:
    def serial_number() -> str:
        with tls_socket(listening, "SECRET") as client:
            return client.getpeercert()["serialNumber"]

    before = serial_number()
    settings = listening.client("SECRET", "SSL")
    admin = AdminClient(settings)
    admin.list_topics(timeout=PATIENCE_S)
    with tls_socket(listening, "SECRET") as kept:
        since = len(listening.broker.log)
        good = listening.keystore.read_bytes()
        listening.keystore.write_bytes(good[:100])
        os.kill(listening.broker.pid, signal.SIGHUP)
        wait_for_log(listening, "listener SECRET keeps its certificate, the new one cannot be used", since)
        assert serial_number() == before
        listening.authority.sign_broker(LOCAL_HOSTS, renew=True)
        os.kill(listening.broker.pid, signal.SIGHUP)
        wait_for_log(listening, "listener SECRET has a new certificate", since)
        assert serial_number() != before
        kept.sendall(API_VERSIONS_FRAME)
        assert len(kept.recv(4)) == 4
    admin.list_topics(timeout=PATIENCE_S)


def test_a_certificate_that_ends_soon_is_named_in_the_log(listening: ListeningBroker) -> None:
    since = len(listening.broker.log)
    listening.authority.sign_broker(LOCAL_HOSTS, days=5, renew=True)
    os.kill(listening.broker.pid, signal.SIGHUP)
    wait_for_log(listening, "the certificate of listener SECRET expires in ", since)


def test_an_option_of_tls_is_changed_at_run_time(listening: ListeningBroker) -> None:
    since = len(listening.broker.log)
    admin = AdminClient(listening.client("OPEN"))
    entry = ConfigEntry(
        "listener.name.proven.ssl.enabled.protocols", "TLSv1.3", incremental_operation=AlterConfigOpType.SET
    )
    resource = ConfigResource(ConfigResource.Type.BROKER, "1", incremental_configs=[entry])
    [done] = admin.incremental_alter_configs([resource]).values()
    done.result(PATIENCE_S)
    wait_for_log(listening, "listener PROVEN has a new certificate or new options of TLS", since)
    with pytest.raises(ssl.SSLError):
        tls_socket(listening, "PROVEN", maximum_version=ssl.TLSVersion.TLSv1_2)
