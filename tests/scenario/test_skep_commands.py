"""Skep's private API, against a real broker and one that does not have it."""

import json
import socket
import struct
import threading
from collections.abc import Iterator
from typing import Any
from uuid import UUID, uuid4

import pytest

from skep.base.errors import ErrorCode, KafkaError
from skep.client.cluster_client import ClusterClient, Node
from skep.client.commands import command_to_all, command_to_leader, command_to_node
from skep.client.errors import Unreachable, Unsupported
from skep.testing import EmbeddedBroker
from skep.wire import apis
from skep.wire.codec import encode_response
from tests.raw_client import RawClient
from tests.raw_requests import batch_of
from tests.scenario.share_member import ACCEPT, RELEASE, ShareMember, initialize_share_state
from tests.waiting import PATIENCE_S


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker() as running:
        yield running


@pytest.fixture
def client(broker: EmbeddedBroker) -> Iterator[RawClient]:
    with RawClient(broker.bootstrap_servers) as client:
        yield client


@pytest.fixture
def cluster(broker: EmbeddedBroker) -> Iterator[ClusterClient]:
    with ClusterClient(broker.bootstrap_servers, timeout_s=PATIENCE_S) as cluster:
        yield cluster


@pytest.fixture
def topic() -> str:
    return f"topic-{uuid4().hex[:8]}"


@pytest.fixture
def topic_id(client: RawClient, topic: str) -> UUID:
    """Of a topic with ten records in one partition."""
    created = client.create_topic(topic)
    client.append(topic, batch_of(*(b"x",) * 10))
    return created


@pytest.fixture
def group(client: RawClient, topic_id: UUID) -> str:
    name = f"group-{uuid4().hex[:8]}"
    initialize_share_state(client, name, topic_id)
    return name


@pytest.fixture
def member(client: RawClient, group: str, topic_id: UUID) -> ShareMember:
    return ShareMember(client, group, topic_id)


def command(client: RawClient, name: str, arguments: Any) -> Any:
    given = arguments if isinstance(arguments, bytes) else json.dumps(arguments).encode()
    return client.ask(apis.SKEP_COMMAND, 0, command=name, arguments=given)


# The API.


def test_commands_are_listed_with_what_they_take(cluster: ClusterClient) -> None:
    [found] = command_to_all(cluster, "commands", {}).values()
    assert found["commands"] == {}
    assert found["deliveries"]["partition"] == "a whole number from 0 to 2147483647"


@pytest.mark.parametrize(
    ("name", "arguments", "code", "problem"),
    [
        ("no-such", {}, ErrorCode.unsupported_version, "it has alter_plain_user, check_access, commands, delay"),
        ("", {}, ErrorCode.unsupported_version, "no command ''"),
        ("x" * 100_000, {}, ErrorCode.unsupported_version, "no command 'xxx"),
        ("commands", b"{", ErrorCode.invalid_request, "not JSON"),
        ("commands", b"[" * 60_000, ErrorCode.invalid_request, "not JSON"),
        ("commands", b" " * 5_000_000, ErrorCode.invalid_request, "at most 65536"),
        ("commands", {"what": 1}, ErrorCode.invalid_request, "it takes none"),
        ("deliveries", {}, ErrorCode.invalid_request, "needs the argument 'group'"),
        ("deliveries", {"group": "", "topic": "t", "partition": 0}, ErrorCode.invalid_group_id, "empty"),
        ("deliveries", {"group": "g", "topic": "t", "partition": 0}, ErrorCode.unknown_topic_or_partition, "t"),
    ],
)
def test_a_refusal_says_what_is_wrong(
    client: RawClient, name: str, arguments: Any, code: ErrorCode, problem: str
) -> None:
    response = command(client, name, arguments)
    assert (response.error_code, response.result) == (code, None)
    assert problem in response.error_message
    assert len(response.error_message) <= 1100
    assert command(client, "commands", {}).error_code is ErrorCode.none


# The client.


def test_a_missing_topic_or_partition_is_reported_at_once(cluster: ClusterClient, topic: str, topic_id: UUID) -> None:
    with pytest.raises(KafkaError, match="no-such"):
        command_to_leader(cluster, "no-such", 0, "deliveries", {"group": "g"})
    with pytest.raises(KafkaError, match="no partition 7; it has 1"):
        command_to_leader(cluster, topic, 7, "deliveries", {"group": "g"})


def test_a_command_that_the_broker_lacks_is_unsupported(cluster: ClusterClient) -> None:
    with pytest.raises(Unsupported, match="no command 'tomorrow'"):
        command_to_all(cluster, "tomorrow", {})


class OtherBroker(threading.Thread):
    """Answers to ApiVersions, and closes a connection with anything else, as Kafka does for an unknown API."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.node = Node(1, *self.listener.getsockname())
        self.others = 0
        self.start()

    def run(self) -> None:
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            with connection:
                self._serve(connection)

    def _serve(self, connection: socket.socket) -> None:
        while head := connection.recv(12, socket.MSG_WAITALL):
            length, key, version, correlation_id = struct.unpack(">ihhi", head)
            connection.recv(length - 8, socket.MSG_WAITALL)
            if key != apis.API_VERSIONS.key:
                self.others += 1
                return
            response = encode_response(key, version, correlation_id, {"api_keys": [{"api_key": 18}]})
            connection.sendall(struct.pack(">i", len(response)) + response)


def test_a_broker_without_the_api_is_told_from_one_that_dies() -> None:
    other = OtherBroker()
    with ClusterClient("{1}:{2}".format(*other.node), timeout_s=PATIENCE_S) as cluster:
        with pytest.raises(Unsupported, match="has no commands of Skep"):
            command_to_node(cluster, other.node, "deliveries", {})
        assert other.others == 2
        other.listener.close()
        with pytest.raises(Unreachable):
            command_to_node(cluster, other.node, "deliveries", {})


# Deliveries.


def deliveries(cluster: ClusterClient, group: str, topic: str, **more: Any) -> Any:
    return command_to_leader(cluster, topic, 0, "deliveries", {"group": group, **more})


def test_nothing_is_in_flight_of_a_group_that_does_not_exist(
    cluster: ClusterClient, topic: str, topic_id: UUID
) -> None:
    found = deliveries(cluster, "nobody", topic)
    assert (found["start"], found["runs"], found["is_active"], found["high_watermark"]) == (None, [], False, 10)


def test_who_holds_what_since_when(cluster: ClusterClient, group: str, topic: str, member: ShareMember) -> None:
    found = deliveries(cluster, group, topic)
    assert (found["start"], found["end"], found["is_active"]) == (0, 0, False)
    assert member.acquire(max_records=4, batch_size=1) == [(0, 9, 1)]
    assert member.results({0: [(0, 0, [ACCEPT]), (1, 1, [RELEASE]), (4, 5, [ACCEPT])]}) == [ErrorCode.none]
    found = deliveries(cluster, group, topic)
    assert (found["start"], found["end"], found["is_active"]) == (1, 10, True)
    assert found["records"] == {"available": 1, "acquired": 6, "acknowledged": 2}
    released, first, second = found["runs"]
    assert released == {"first": 1, "last": 1, "state": "available", "delivery_count": 1, "failures": 0}
    assert (first["first"], first["last"], first["state"], first["member"]) == (2, 3, "acquired", member.member_id)
    assert (second["first"], second["last"], second["delivery_count"]) == (6, 9, 1)
    assert second["lock_expires_ms"] - second["locked_at_ms"] == 30_000
    assert found["next"] is None


def test_runs_are_returned_a_few_at_a_time(cluster: ClusterClient, group: str, topic: str, member: ShareMember) -> None:
    member.acquire()
    member.results({0: [(offset, offset, [ACCEPT]) for offset in (1, 3, 5)]})
    pages, after = [], -1
    while after is not None:
        page = deliveries(cluster, group, topic, limit=3, after=after)
        pages.append([(run["first"], run["last"]) for run in page["runs"]])
        after = page["next"]
    assert pages == [[(0, 0), (2, 2), (4, 4)], [(6, 9)]]
    assert [run["first"] for run in deliveries(cluster, group, topic, after=7)["runs"]] == [8]


def test_what_is_stored_is_shown_when_nobody_fetches(
    cluster: ClusterClient, group: str, topic: str, member: ShareMember
) -> None:
    member.acquire()
    member.results({0: [(0, 4, [ACCEPT]), (5, 5, [RELEASE])]})
    member.close()
    found = deliveries(cluster, group, topic)
    assert (found["start"], found["is_active"]) == (5, False)
    assert {run["state"] for run in found["runs"]} == {"available"}
    assert found["runs"][0]["delivery_count"] == 1


# Delay.


def delay(cluster: ClusterClient, group: str, topic: str, offset: int, **more: Any) -> Any:
    return command_to_leader(cluster, topic, 0, "delay", {"group": group, "offset": offset, **more})["state"]


def test_the_next_delivery_of_a_record_in_flight_and_of_one_that_waits(
    cluster: ClusterClient, group: str, topic: str, member: ShareMember
) -> None:
    member.acquire()
    assert delay(cluster, group, topic, 3, delay_ms=3_600_000, text="no paper") == "acquired"
    [_, held, _] = deliveries(cluster, group, topic)["runs"]
    assert (held["first"], held["delay_ms"], held["text"]) == (3, 3_600_000, "no paper")
    member.results({0: [(0, 9, [RELEASE])]})
    found = deliveries(cluster, group, topic)
    assert found["records"] == {"available": 9, "waiting": 1}
    [_, waiting, _] = found["runs"]
    assert (waiting["state"], waiting["delivery_count"]) == ("waiting", 1)
    before = waiting["not_before_ms"]
    assert delay(cluster, group, topic, 3, delay_ms=7_200_000) == "waiting"
    after = deliveries(cluster, group, topic)["runs"][1]["not_before_ms"]
    assert 3_000_000 < after - before < 4_000_000
    assert member.acquire({}) == [(0, 2, 2), (4, 9, 2)]
    assert delay(cluster, group, topic, 3, delay_ms=0) == "waiting"
    assert member.acquire() == [(3, 3, 2)]


@pytest.mark.parametrize("offset", [0, 9, 10, 2**62])
def test_a_record_that_nobody_holds_is_not_delayed(
    cluster: ClusterClient, group: str, topic: str, member: ShareMember, offset: int
) -> None:
    with pytest.raises(KafkaError, match="no member of group"):
        delay(cluster, group, topic, offset, delay_ms=1)
    member.acquire()
    member.results({0: [(0, 0, [ACCEPT]), (9, 9, [RELEASE])]})
    with pytest.raises(KafkaError, match=f"offset {offset} is not held") as refused:
        delay(cluster, group, topic, offset, delay_ms=1)
    assert refused.value.code is ErrorCode.invalid_record_state


def test_a_record_that_another_member_holds_is_not_delayed(
    cluster: ClusterClient, group: str, topic: str, member: ShareMember
) -> None:
    member.acquire()
    with pytest.raises(KafkaError, match="another member"):
        delay(cluster, group, topic, 5, delay_ms=1, member="somebody")
    assert delay(cluster, group, topic, 5, delay_ms=1, member=member.member_id) == "acquired"
    assert delay(cluster, group, topic, 5, text="only why") == "acquired"
    with pytest.raises(KafkaError, match="from 0 to 2678400000"):
        delay(cluster, group, topic, 5, delay_ms=2**40)


# Renew.


def renew(cluster: ClusterClient, group: str, topic: str, *deliveries: tuple[int, int]) -> Any:
    return command_to_leader(cluster, topic, 0, "renew", {"group": group, "deliveries": deliveries})


def test_locks_of_deliveries_that_go_on_begin_anew(
    cluster: ClusterClient, group: str, topic: str, member: ShareMember
) -> None:
    assert renew(cluster, group, topic, (0, 1)) == {"lost": [0], "lock_ms": 30_000}, "nobody fetches yet"
    member.acquire()
    member.results({0: [(0, 0, [ACCEPT]), (1, 1, [RELEASE])]})
    assert renew(cluster, group, topic, (5, 1), (3, 1), (1, 1), (0, 1), (4, 2), (2**62, 1)) == {
        "lost": [0, 1, 4, 2**62],
        "lock_ms": 30_000,
    }
    runs = {run["first"]: run for run in deliveries(cluster, group, topic)["runs"]}
    # Within one response: each is made with another reading of two clocks.
    assert runs[5]["lock_expires_ms"] == runs[3]["lock_expires_ms"] > runs[4]["lock_expires_ms"]
    assert member.results({0: [(2, 9, [ACCEPT])]}) == [ErrorCode.none], "they are its own as before"


@pytest.mark.parametrize("wrong", [[], [[1]], [[1, -1]], [1], "x", [[0, 1]] * 1001])
def test_a_renewal_names_deliveries(client: RawClient, group: str, topic: str, wrong: Any) -> None:
    response = command(client, "renew", {"group": group, "topic": topic, "partition": 0, "deliveries": wrong})
    assert response.error_code is ErrorCode.invalid_request
    assert "pairs [offset, delivery count]" in response.error_message
