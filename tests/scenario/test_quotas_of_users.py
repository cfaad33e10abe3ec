"""Quotas where clients authenticate: those of users, and the rate of connections of each listener."""

import socket
import time
from collections.abc import Iterator

import pytest
from confluent_kafka import Producer

from skep.base.errors import ErrorCode
from skep.wire import apis
from tests.fuzz.doors import PASSWORD, USER
from tests.fuzz.sasl_dialog import scram_login
from tests.fuzz.secured import SecuredBroker, secured_broker
from tests.raw_client import RawClient
from tests.raw_requests import batch_of
from tests.scenario.test_quotas import NEVER, TOLERANCE, has_response, set_quota, throttle_ms


@pytest.fixture(scope="module")
def secured() -> Iterator[SecuredBroker]:
    with secured_broker({"listener.name.sasl_plaintext.max.connection.creation.rate": "2"}) as secured:
        yield secured


@pytest.fixture
def client(secured: SecuredBroker) -> Iterator[RawClient]:
    """Without authentication, so it is ANONYMOUS."""
    with RawClient(secured.broker.bootstrap_servers) as client:
        yield client


class LoggedIn(RawClient):
    def __init__(self, secured: SecuredBroker, client_id: str) -> None:
        super().__init__(secured.bootstrap_servers, client_id=client_id)
        scram_login(self.socket, USER, PASSWORD)


def test_all_connections_of_a_user_share_its_quota_and_nobody_else_does(
    secured: SecuredBroker, client: RawClient, topic: str
) -> None:
    client.create_topic(topic)
    set_quota(client, {"user": USER}, producer_byte_rate=NEVER)
    try:
        with LoggedIn(secured, "one") as first, LoggedIn(secured, "two") as second:
            first.send_produce(topic, batch_of(b"egg"))
            told = throttle_ms(first.receive())
            assert told > 60_000
            second.send_produce(topic, batch_of(b"egg"))
            assert throttle_ms(second.receive()) > told
            client.append(topic, batch_of(b"hen"))
            # Logging in is not throttled.
            second.send(apis.API_VERSIONS, 0)
            assert not has_response(second, 0.1)
            with LoggedIn(secured, "three") as third:
                assert third.ask(apis.API_VERSIONS, 0).error_code is ErrorCode.none
    finally:
        set_quota(client, {"user": USER}, producer_byte_rate=None)


def test_a_producer_of_librdkafka_is_throttled_over_tls_too(
    secured: SecuredBroker, client: RawClient, topic: str
) -> None:
    client.create_topic(topic)
    rate, size, count = 400_000, 10_000, 60
    set_quota(client, {"user": USER, "client-id": None}, producer_byte_rate=rate)
    events, errors = [], []
    settings = {
        "bootstrap.servers": secured.ssl_bootstrap_servers,
        "security.protocol": "SASL_SSL",
        "sasl.mechanisms": "SCRAM-SHA-256",
        "sasl.username": USER,
        "sasl.password": PASSWORD,
        "ssl.ca.location": str(secured.authority),
        "batch.size": 50_000,
        "throttle_cb": events.append,
    }
    producer = Producer(settings)
    begun = time.monotonic()
    for number in range(count):
        value = number.to_bytes(4, "big") * (size // 4)
        producer.produce(topic, value, on_delivery=lambda error, _: errors.append(error))
    assert producer.flush(60) == 0
    assert errors == [None] * count
    assert time.monotonic() - begun >= (count * size - rate / 2 - 60_000) / rate * TOLERANCE
    producer.poll(0)
    assert max(event.throttle_time for event in events) > 0
    set_quota(client, {"user": USER, "client-id": None}, producer_byte_rate=None)


def test_new_connections_of_a_listener_wait_for_their_turn_and_those_of_others_do_not(
    secured: SecuredBroker, client: RawClient
) -> None:
    begun = time.monotonic()
    several = [socket.create_connection(secured.sasl_plaintext, timeout=60) for _ in range(4)]
    with RawClient(secured.broker.bootstrap_servers) as other:
        assert other.ask(apis.API_VERSIONS, 0).error_code is ErrorCode.none
    for one in several:
        scram_login(one, USER, PASSWORD)
        one.close()
    # Two at once, then one each half second.
    assert time.monotonic() - begun >= 1.0 * TOLERANCE


def test_quotas_outlive_a_restart_of_the_broker(secured: SecuredBroker, client: RawClient) -> None:
    set_quota(client, {"client-id": "kept"}, producer_byte_rate=5000.0)
    secured.broker.restart()
    with RawClient(secured.broker.bootstrap_servers) as again:
        components = [{"entity_type": "client-id", "match_type": 0, "match": "kept"}]
        described = again.ask(apis.DESCRIBE_CLIENT_QUOTAS, 1, components=components, strict=True)
        [[value]] = [entry.values for entry in described.entries]
        assert (value.key, value.value) == ("producer_byte_rate", 5000.0)
