"""Whom the server hangs up on: the idle, and those who keep room from others with requests they never finish."""

import pytest

from skep.base.loop.slicer import Slicer
from skep.broker.request import CloseConnection
from skep.security.access import FULL_ACCESS
from skep.security.principal import Principal
from skep.server.socket_server import PATIENCE_WITH_NEWCOMERS_S, STALLED_S, SocketServer
from tests.manual_clock import ManualClock


class FakeConnection:
    def __init__(self, idle_since=0.0, slow_since=None, untaken=0, untaken_since=None):
        self._idle_since = idle_since
        self._slow_since = slow_since
        self._untaken = untaken
        self._untaken_since = untaken_since
        self.reason = None
        self.host = self.peer = "10.0.0.1"
        self.listener_name = "PLAINTEXT"
        self.principal = None
        self.must_authenticate = False
        self.muted_s = 0.0

    def mute(self, duration_s):
        self.muted_s = duration_s

    def idle_since(self, now):
        return self._idle_since

    def receives_slowly_since(self, now):
        return now if self._slow_since is None else self._slow_since

    def untaken_bytes(self):
        return self._untaken

    def takes_nothing_since(self, now):
        return now if self._untaken_since is None else self._untaken_since

    def hang_up(self, reason):
        self.reason = reason


class NoDispatch:
    def decode(self, frame, client_host):
        raise AssertionError

    def handle(self, request):
        raise AssertionError


def reap(listener, now):
    for _ in listener.reap(now):
        pass


@pytest.fixture
def listener():
    clock = ManualClock()
    listener = SocketServer(
        NoDispatch(),
        lambda principal, host, listener: FULL_ACCESS,
        clock,
        Slicer(clock),
        None,
        max_request_bytes=100,
        queued_max_request_bytes=100,
        queued_max_response_bytes=100,
        max_inflight_requests=10,
    )
    listener.max_idle_ms = 60_000
    return listener


def test_only_the_idle_are_hung_up_on(listener):
    idle, busy = FakeConnection(idle_since=0.0), FakeConnection(idle_since=30.0)
    for connection in (idle, busy):
        assert listener.admit(connection)
    reap(listener, 61.0)
    assert "connections.max.idle.ms" in idle.reason
    assert busy.reason is None


def test_no_limit_no_reaping(listener):
    listener.max_idle_ms = -1
    connection = FakeConnection(idle_since=0.0)
    listener.admit(connection)
    reap(listener, 1e9)
    assert connection.reason is None


def test_an_unfinished_request_goes_only_when_others_wait_for_its_room(listener):
    stalled = FakeConnection(idle_since=100.0, slow_since=100.0)
    listener.admit(stalled)
    budget = listener.receive_budget
    reap(listener, 101.0 + STALLED_S)
    assert stalled.reason is None
    one, other = object(), object()
    assert budget.take(200, one, lambda: None)
    assert not budget.take(200, other, lambda: None)
    reap(listener, 99.0 + STALLED_S)
    assert stalled.reason is None
    reap(listener, 101.0 + STALLED_S)
    assert "queued.max.request.bytes" in stalled.reason


def test_of_those_who_read_nothing_the_largest_go_until_the_rest_fits(listener):
    small, large, reading, recent = (
        FakeConnection(100.0, untaken=60, untaken_since=1.0),
        FakeConnection(100.0, untaken=70, untaken_since=1.0),
        FakeConnection(100.0, untaken=1000),
        FakeConnection(100.0, untaken=10, untaken_since=99.0),
    )
    for connection in (small, large, recent):
        listener.admit(connection)
    reap(listener, 100.0)
    assert "skep.queued.max.response.bytes" in large.reason
    assert small.reason is None
    listener.forget(large)
    listener.admit(reading)
    reap(listener, 101.0)
    assert small.reason is not None
    assert reading.reason is None
    assert recent.reason is None


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
    assert record.message.startswith("refused 127.0.0.1:2: 2 connections are open; the other file descriptors")
    listener.forget(connections[0])
    assert listener.admit(connections[2])


def stranger(host="10.0.0.1"):
    connection = FakeConnection()
    connection.host = connection.peer = host
    connection.must_authenticate = True
    return connection


def test_an_address_may_have_so_many_connections(listener):
    listener.max_connections_per_host = 2
    listener.max_connections_by_host = {"10.0.0.9": 1}
    first, second = FakeConnection(), FakeConnection()
    assert listener.admit(first)
    assert listener.admit(second)
    assert not listener.admit(FakeConnection())
    assert listener.admit(stranger("10.0.0.9"))
    assert not listener.admit(stranger("10.0.0.9"))
    listener.forget(first)
    assert listener.admit(FakeConnection())


def test_strangers_who_hesitate_keep_nobody_else_out(listener):
    listener.max_unauthenticated = 2
    slow, slower = stranger(), stranger()
    for one in (slow, slower):
        assert listener.admit(one)
        listener.awaits_authentication(one)
    assert not listener.admit(stranger())
    assert listener.admit(FakeConnection()), "it does not have to authenticate"
    listener.clock.advance_ms(int(PATIENCE_WITH_NEWCOMERS_S * 1000))
    assert listener.admit(stranger())
    assert "skep.max.unauthenticated.connections" in slow.reason
    assert slower.reason is None


def test_a_connection_whose_turn_is_too_late_is_refused_and_takes_no_room(listener, caplog):
    listener.max_connections_per_host = listener.max_connections = 1
    listener.connection_wait_s = lambda host, rates: None
    assert not listener.admit(FakeConnection())
    assert not listener.admit(stranger())
    assert "max.connection.creation.rate" in caplog.text
    listener.connection_wait_s = lambda host, rates: 0.5
    late = FakeConnection()
    assert listener.admit(late)
    assert late.muted_s == 0.5


def test_nobody_is_hung_up_on_for_a_connection_whose_turn_is_too_late(listener):
    listener.max_unauthenticated = 1
    slow = stranger()
    assert listener.admit(slow)
    listener.awaits_authentication(slow)
    listener.clock.advance_ms(int(PATIENCE_WITH_NEWCOMERS_S * 1000))
    listener.connection_wait_s = lambda host, rates: None
    assert not listener.admit(stranger())
    assert slow.reason is None


def test_the_time_to_authenticate_begins_after_the_wait(listener, monkeypatch):
    monkeypatch.setattr("skep.server.socket_server.Connection", FakeConnection)
    listener.handshake_timeout_ms = 10_000
    listener.connection_wait_s = lambda host, rates: 1.0
    delayed = stranger()
    assert listener.admit(delayed)
    listener.awaits_authentication(delayed)
    reap(listener, 10.9)
    assert delayed.reason is None
    reap(listener, 11.1)
    assert "skep.handshake.timeout.ms" in delayed.reason


@pytest.mark.parametrize("is_tls", [False, True])
def test_who_waited_for_its_turn_is_not_the_one_that_hesitates(listener, is_tls):
    listener.max_unauthenticated = 2
    listener.connection_wait_s = lambda host, rates: 1.0
    delayed, slow = stranger(), stranger()
    assert (listener.admit_newcomer if is_tls else listener.admit)(delayed)
    if not is_tls:
        listener.awaits_authentication(delayed)
    listener.connection_wait_s = lambda host, rates: 0.0
    assert listener.admit(slow)
    listener.awaits_authentication(slow)
    listener.clock.advance_ms(int(PATIENCE_WITH_NEWCOMERS_S * 1000))
    assert listener.admit(stranger())
    assert (delayed.reason, slow.reason is None) == (None, False)


def test_a_principal_may_have_so_many_connections(listener):
    listener.max_connections_per_principal = 1
    ann, again = stranger(), stranger()
    for one in (ann, again):
        listener.admit(one)
    listener.authenticated(ann, Principal("ann"))
    ann.principal = Principal("ann")
    with pytest.raises(CloseConnection, match="User:ann has 1 connections"):
        listener.authenticated(again, Principal("ann"))
    listener.forget(ann)
    listener.authenticated(again, Principal("ann"))
