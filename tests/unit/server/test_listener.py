"""Whom the listener hangs up on: the idle, and those who keep room from others with requests they never finish."""

import pytest

from skep.base.clock import ManualClock
from skep.server.listener import STALLED_REQUEST_S, Listener


class FakeConnection:
    def __init__(self, idle_since=0.0, holding_since=None):
        self._idle_since = idle_since
        self._holding_since = holding_since
        self.reason = None

    def idle_since(self, now):
        return self._idle_since

    def holding_since(self, now):
        return now if self._holding_since is None else self._holding_since

    def hang_up(self, reason):
        self.reason = reason


class NoDispatch:
    def decode(self, frame, client_host):
        raise AssertionError

    def handle(self, request):
        raise AssertionError


@pytest.fixture
def listener():
    listener = Listener(
        NoDispatch(),
        ManualClock(),
        None,
        max_request_bytes=100,
        queued_max_request_bytes=100,
        max_inflight_requests=10,
    )
    listener.max_idle_ms = 60_000
    return listener


def test_only_the_idle_are_hung_up_on(listener):
    idle, busy = FakeConnection(idle_since=0.0), FakeConnection(idle_since=30.0)
    for connection in (idle, busy):
        assert listener.admit(connection)
    listener.reap(61.0)
    assert "connections.max.idle.ms" in idle.reason
    assert busy.reason is None


def test_no_limit_no_reaping(listener):
    listener.max_idle_ms = -1
    connection = FakeConnection(idle_since=0.0)
    listener.admit(connection)
    listener.reap(1e9)
    assert connection.reason is None


def test_an_unfinished_request_goes_only_when_others_wait_for_its_room(listener):
    stalled = FakeConnection(idle_since=100.0, holding_since=100.0)
    listener.admit(stalled)
    budget = listener.receive_budget
    listener.reap(101.0 + STALLED_REQUEST_S)
    assert stalled.reason is None
    one, other = object(), object()
    assert budget.take(200, one, lambda: None)
    assert not budget.take(200, other, lambda: None)
    listener.reap(99.0 + STALLED_REQUEST_S)
    assert stalled.reason is None
    listener.reap(101.0 + STALLED_REQUEST_S)
    assert "unfinished" in stalled.reason


def test_one_connection_too_many_is_not_admitted(listener):
    listener.max_connections = 1
    first = FakeConnection()
    assert listener.admit(first)
    second = FakeConnection()
    second.peer = "127.0.0.1:1"
    assert not listener.admit(second)
    listener.forget(first)
    assert listener.admit(second)


def test_connections_leave_the_descriptors_that_logs_need_and_the_log_says_so_once(listener, caplog):
    listener.max_descriptors = 2
    connections = [FakeConnection() for _ in range(5)]
    for number, connection in enumerate(connections):
        connection.peer = f"127.0.0.1:{number}"
    assert [listener.admit(connection) for connection in connections] == [True, True, False, False, False]
    (record,) = caplog.records
    assert record.message.startswith("refused 127.0.0.1:2: 2 connections are open; what else the process may open")
    listener.forget(connections[0])
    assert listener.admit(connections[2])
