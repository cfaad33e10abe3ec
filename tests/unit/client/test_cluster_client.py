from types import SimpleNamespace
from typing import Any

import pytest

from skep.base.errors import ErrorCode
from skep.client.cluster_client import GROUP, ClusterClient, Node, parse_addresses, request_timeout_s
from skep.client.errors import ClientError, TimedOut, Unreachable, Unsupported
from skep.wire.apis import OFFSET_DELETE, Api
from skep.wire.codec import Body
from tests.manual_clock import ManualClock

HERE = Node(1, "b1", 9092)


@pytest.mark.parametrize(
    ("text", "addresses"),
    [
        ("h:1", [("h", 1)]),
        ("h", [("h", 9092)]),
        ("a:1, b:2,", [("a", 1), ("b", 2)]),
        ("PLAINTEXT://h:1", [("h", 1)]),
        ("[::1]:7", [("::1", 7)]),
        ("[::1]", [("::1", 9092)]),
    ],
)
def test_addresses_are_understood_as_kafka_writes_them(text: str, addresses: list[tuple[str, int]]) -> None:
    assert parse_addresses(text) == addresses


@pytest.mark.parametrize("text", ["", ",", ":1", "h:", "h:x", "h:0", "h:70000"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ClientError):
        parse_addresses(text)


@pytest.mark.parametrize("protocol", ["SASL_SSL", "ssl", "SASL_PLAINTEXT"])
def test_a_protocol_that_is_not_the_clients_is_refused_by_name(protocol: str) -> None:
    assert parse_addresses(f"{protocol}://h:1", protocol.upper()) == [("h", 1)]
    with pytest.raises(ClientError, match=r"security\.protocol=PLAINTEXT; set it, or drop"):
        parse_addresses(f"{protocol}://h:1")


@pytest.mark.parametrize(("timeout_s", "request_s"), [(30, 10), (120, 10), (12, 4), (2, 1), (0.3, 0.3)])
def test_one_request_takes_a_part_of_the_time_that_there_is(timeout_s: float, request_s: float) -> None:
    assert request_timeout_s(timeout_s) == request_s


class FirstConnection:
    """Fails with this when it is asked."""

    peer = ("b1", 9092)
    is_closed = False

    def __init__(self, failure: BaseException) -> None:
        self.failure = failure

    def ask(self, api: Api, body: Body) -> Any:
        raise self.failure

    def close(self) -> None:
        self.is_closed = True


@pytest.mark.parametrize("failure", [KeyboardInterrupt(), Unreachable("gone"), Unsupported("no")])
def test_a_connection_whose_response_was_not_read_is_not_used_again(failure: BaseException) -> None:
    cluster = ClusterClient("b1,b2")
    connections = [FirstConnection(failure), FirstConnection(failure)]
    asked: list[tuple[str, int]] = []

    def connect(host: str, port: int) -> Any:
        asked.append((host, port))
        return connections[len(asked) - 1]

    cluster._connect = connect  # type: ignore[method-assign]
    for connection in connections:
        with pytest.raises(type(failure)):
            cluster.metadata()
        assert connection.is_closed
    assert asked[1] == (("b2", 9092) if isinstance(failure, Unreachable) else ("b1", 9092)), "a silent one comes last"


class Coordinator(ClusterClient):
    """A cluster whose coordinator answers with these codes, one after the other."""

    def __init__(self, *codes: ErrorCode) -> None:
        self.clock = ManualClock()
        self.codes = list(codes)
        self.lookups = 0
        super().__init__("b1", timeout_s=10, clock=self.clock, sleep=lambda s: self.clock.advance_ms(round(s * 1000)))

    def _find_coordinator(self, kind: int, key: str) -> tuple[Node | None, ErrorCode, str]:
        self.lookups += 1
        return HERE, ErrorCode.none, ""

    def ask_node(self, node: Node, api: Api, body: Body) -> Any:
        return self.codes.pop(0) if len(self.codes) > 1 else self.codes[0]

    def ask(self) -> tuple[Node, Any]:
        return self.ask_coordinator(GROUP, "g", OFFSET_DELETE, {}, lambda response: response)


def test_a_coordinator_that_is_loading_or_has_moved_is_looked_up_and_asked_again() -> None:
    cluster = Coordinator(ErrorCode.coordinator_load_in_progress, ErrorCode.not_coordinator, ErrorCode.none)
    assert cluster.ask() == (HERE, ErrorCode.none)
    assert cluster.lookups == 3


def test_another_code_is_the_callers_to_read() -> None:
    assert Coordinator(ErrorCode.non_empty_group).ask() == (HERE, ErrorCode.non_empty_group)


def test_a_coordinator_that_never_gets_ready_is_given_up_when_the_time_is_over() -> None:
    cluster = Coordinator(ErrorCode.coordinator_load_in_progress)
    with pytest.raises(TimedOut, match="OffsetDelete of 'g': no progress for 10 s: coordinator_load_in_progress"):
        cluster.ask()
    assert 10 <= cluster.clock.monotonic() < 11


def test_who_leads_is_asked_of_another_broker_when_the_one_that_was_named_refuses() -> None:
    cluster = ClusterClient("b1,b2,b3")
    asked: list[tuple[str, int]] = []

    def connect(host: str, port: int) -> Any:
        asked.append((host, port))
        return SimpleNamespace(peer=(host, port), close=lambda: None, ask=lambda api, body: SimpleNamespace(brokers=[]))

    cluster._connect = connect  # type: ignore[method-assign]
    cluster.switch_metadata_broker()  # nobody was asked yet
    for _ in range(3):
        cluster.metadata()
        cluster.metadata()
        cluster.switch_metadata_broker()
    assert [host for host, _ in asked] == ["b1", "b2", "b1"]


def test_a_coordinator_that_says_it_is_none_is_looked_for_at_another_broker() -> None:
    cluster = ClusterClient("b1,b2", sleep=lambda _: None)
    looked: list[str] = []
    found = SimpleNamespace(error_code=ErrorCode.none, node_id=1, host="b1", port=9092)

    def connect(host: str, port: int) -> Any:
        looked.append(host)
        return SimpleNamespace(peer=(host, port), close=lambda: None, ask=lambda api, body: found)

    cluster._connect = connect  # type: ignore[method-assign]
    codes = iter([ErrorCode.not_coordinator, ErrorCode.none])
    cluster.ask_node = lambda node, api, body: next(codes)  # type: ignore[assignment, method-assign]
    cluster.ask_coordinator(GROUP, "g", OFFSET_DELETE, {}, lambda response: response)
    assert looked == ["b1", "b2"]
