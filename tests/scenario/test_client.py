"""The blocking client: against a real broker, and against peers that are no brokers."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from skep.base.errors import ErrorCode, KafkaError
from skep.client.cluster_client import GROUP, ClusterClient
from skep.client.connection import Connection
from skep.client.errors import ClientError, Unreachable, Unsupported
from skep.testing import EmbeddedBroker
from skep.wire.apis import METADATA, OFFSET_DELETE, Api


@contextmanager
def peer(response: bytes | None) -> Iterator[tuple[str, int]]:
    """Takes one connection, reads a request and answers with these bytes; None: keeps quiet until we are done."""
    is_over = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.recv(1 << 16)
                if response is None:
                    is_over.wait()
                else:
                    connection.sendall(response)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield listening.getsockname()
        finally:
            is_over.set()
            thread.join()


@pytest.fixture
def nobody() -> Iterator[str]:
    """An address that is bound, so nobody else gets it, and refuses connections."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{taken.getsockname()[1]}"


def test_the_first_address_that_answers_is_enough(skep_broker: EmbeddedBroker, nobody: str) -> None:
    with ClusterClient(f"{nobody},{skep_broker.bootstrap_servers}") as client:
        [node] = client.nodes()
        assert f"{node.host}:{node.port}" == skep_broker.bootstrap_servers


def test_when_nobody_answers_every_address_is_named(nobody: str) -> None:
    with ClusterClient(f"{nobody},{nobody}") as client, pytest.raises(Unreachable) as failure:
        client.nodes()
    assert str(failure.value).count(f"no broker answers at {nobody} (Connection refused)") == 2


def test_leaders_and_coordinators_are_found(skep_broker: EmbeddedBroker, topic: str) -> None:
    skep_broker_topic(skep_broker, topic)
    with ClusterClient(skep_broker.bootstrap_servers) as client:
        [node] = client.nodes()
        assert client.leaders([topic]) == {(topic, 0): node, (topic, 1): node}
        with pytest.raises(KafkaError) as missing:
            client.leaders([f"{topic}-not"])
        assert missing.value.code is ErrorCode.unknown_topic_or_partition
        body = {"group_id": "nobody", "topics": []}
        asked, response = client.ask_coordinator(
            GROUP, "nobody", OFFSET_DELETE, body, lambda response: response.error_code
        )
        assert (asked, response.error_code) == (node, ErrorCode.group_id_not_found)


def skep_broker_topic(broker: EmbeddedBroker, topic: str) -> None:
    from tests.raw_client import RawClient

    with RawClient(broker.bootstrap_servers) as raw:
        raw.create_topic(topic, partitions=2)


def test_a_client_goes_on_after_the_broker_was_restarted() -> None:
    with EmbeddedBroker() as broker, ClusterClient(broker.bootstrap_servers) as client:
        [node] = client.nodes()
        client.ask_node(node, METADATA, {"topics": []})
        broker.kill()
        with pytest.raises(Unreachable):
            client.ask_node(node, METADATA, {"topics": []})
        broker.restart()
        assert client.ask_node(node, METADATA, {"topics": []}).brokers


def test_an_api_or_version_that_the_broker_does_not_have_is_said(skep_broker: EmbeddedBroker) -> None:
    host, _, port = skep_broker.bootstrap_servers.rpartition(":")
    with Connection(host, int(port), client_id="test", timeout_s=10) as connection:
        with pytest.raises(Unsupported, match=r"Telemetry is needed and the broker at \S+ does not have it"):
            connection.ask(Api(71, "Telemetry", 0, 0, 0), {})
        with pytest.raises(Unsupported, match="has versions 0 to"):
            connection.ask(METADATA._replace(oldest=900, newest=901), {})
        assert connection.ask(METADATA, {"topics": []}).brokers


@pytest.mark.parametrize(
    ("response", "complaint"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "not Kafka's protocol"),
        (b"\0\0\0\2\0\0", "not Kafka's protocol"),
        (b"\0\0\0\x05\0\0\0\1\0", "not Kafka's protocol"),
        (b"\0\0\0\x0a\0\0\0\x63\0\0\0\0\0\0", "sent a response that is not for ApiVersions"),
        (b"", "connection was closed"),
        (b"\0\0\1\0\0\0", "connection was closed"),
    ],
)
def test_a_peer_that_is_no_broker_is_said_in_one_line(response: bytes, complaint: str) -> None:
    with peer(response) as (host, port), Connection(host, port, client_id="test", timeout_s=10) as connection:
        with pytest.raises(ClientError, match=complaint) as failure:
            connection.ask(METADATA, {})
        assert "\n" not in str(failure.value)


def test_a_peer_that_keeps_quiet_is_given_up() -> None:
    with peer(None) as (host, port), Connection(host, port, client_id="test", timeout_s=0.2) as connection:
        with pytest.raises(Unreachable, match="sent no response to ApiVersions"):
            connection.ask(METADATA, {})
