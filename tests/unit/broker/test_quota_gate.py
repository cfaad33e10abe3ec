"""What the gate measures, whom it throttles, and whose requests pass as if it were not there."""

import asyncio
from datetime import timedelta
from types import SimpleNamespace

import pytest

from skep.base.errors import ErrorCode
from skep.broker.quota_gate import QuotaGate
from skep.broker.request import Request
from skep.metadata.cluster_image import QUOTAS, ClusterImage
from skep.security.access import FULL_ACCESS, FullAccess
from skep.security.operations import Operation, ResourceType
from skep.security.quotas.quotas import Quotas, Windows
from skep.wire import apis
from skep.wire.codec import encode_response
from tests.manual_clock import ManualClock


class FakeConnection:
    def __init__(self):
        self.quotas = None
        self.muted_ms = []

    def mute(self, duration_s):
        self.muted_ms.append(round(duration_s * 1000))


class NotABroker(FullAccess):
    """May do everything but what brokers do among themselves."""

    is_limited = True

    def allows(self, operation, resource, name):
        return (operation, resource) != (Operation.CLUSTER_ACTION, ResourceType.CLUSTER)


class Scene:
    """A dispatcher that takes ``took_ms`` for each request, and responds with ``response``."""

    def __init__(self, **values):
        self.clock = ManualClock()
        self.quotas = Quotas(self.clock, Windows())
        self.quotas.image_changed(ClusterImage.of("c").with_entry(QUOTAS, "client-id", {"values": values}))
        self.connection = FakeConnection()
        self.response, self.took_ms = (b"",), 0
        self.access = FULL_ACCESS
        self.gate = QuotaGate(SimpleNamespace(handle=self._handle), self.quotas, self.clock)

    def _handle(self, request):
        self.clock.advance_ms(self.took_ms)
        return self.response(request) if callable(self.response) else self.response

    def ask(self, api=apis.PRODUCE, size=0, client_id="app", body=None, undecoded=None):
        request = Request(
            api, api.newest, 1, client_id, "h", body, size, undecoded, connection=self.connection, access=self.access
        )
        response = self.gate.handle(request)
        return (None if request.throttle is None else request.throttle.ms), response


def test_a_producer_over_its_rate_is_muted_for_as_long_as_its_response_says():
    scene = Scene(producer_byte_rate=1000)
    assert scene.ask(size=500) == (0, (b"",))
    assert scene.connection.muted_ms == []
    assert scene.ask(size=2000) == (2000, (b"",))
    assert scene.connection.muted_ms == [2000]
    scene.clock.advance_ms(1500)
    assert scene.ask(size=0) == (500, (b"",))


def test_a_producer_whose_request_waits_is_muted_at_once():
    async def later():
        return (b"later",)

    scene = Scene(producer_byte_rate=1000)
    scene.response = lambda request: later()
    throttle_ms, response = scene.ask(size=1500)
    assert (throttle_ms, scene.connection.muted_ms) == (1000, [1000])
    assert asyncio.run(response) == (b"later",)
    assert scene.connection.muted_ms == [1000]


def test_a_request_that_is_throttled_later_mutes_when_it_ends():
    scene = Scene(consumer_byte_rate=1000)

    async def later(request):
        request.throttle.consumed(800, scene.clock.monotonic())
        return (b"later",)

    scene.response = later
    _, response = scene.ask(apis.METADATA)
    assert scene.connection.muted_ms == []
    assert asyncio.run(response) == (b"later",)
    assert scene.connection.muted_ms == [300]


def test_only_requests_of_producers_count_for_their_rate():
    scene = Scene(producer_byte_rate=1)
    assert scene.ask(apis.METADATA, size=1000) == (0, (b"",))


def test_a_share_of_the_time_counts_for_the_next_request_and_throttles_for_a_second_at_most():
    scene = Scene(request_percentage=10)
    scene.took_ms = 60  # half a second of a tenth is free: 50 ms
    assert scene.ask(apis.METADATA)[0] == 0
    scene.took_ms = 1000
    assert scene.ask(apis.METADATA)[0] == 100
    assert scene.ask(apis.METADATA)[0] == 1000
    assert scene.connection.muted_ms == [100, 1000]


FOLLOWER = SimpleNamespace(replica_state=SimpleNamespace(replica_id=2, replica_epoch=1))
BETWEEN_BROKERS = [
    (apis.WRITE_TXN_MARKERS, None),
    (apis.WRITE_SHARE_GROUP_STATE, None),
    (apis.FETCH, FOLLOWER),
    (apis.SKEP_COMMAND, SimpleNamespace(command="end_members")),
    (apis.SKEP_COMMAND, SimpleNamespace(command="topic_needs")),
]


@pytest.mark.parametrize(("api", "body"), BETWEEN_BROKERS)
def test_requests_between_brokers_pass(api, body):
    scene = Scene(request_percentage=0.001)
    scene.took_ms = 1000
    assert [scene.ask(api, body=body)[0] for _ in range(3)] == [None, None, None]


@pytest.mark.parametrize(("api", "body"), BETWEEN_BROKERS)
def test_who_only_claims_to_be_a_broker_does_not_pass(api, body):
    scene = Scene(request_percentage=0.001)
    scene.took_ms, scene.access = 1000, NotABroker()
    assert [scene.ask(api, body=body)[0] for _ in range(2)] == [0, 1000]
    assert scene.ask(apis.FETCH, undecoded=(step for step in ()))[0] == 1000


@pytest.mark.parametrize("command", ["delay", "renew", "reopen", "deliveries", "no such command"])
def test_commands_of_clients_are_throttled(command):
    scene = Scene(request_percentage=0.001)
    scene.took_ms = 1000
    assert [scene.ask(apis.SKEP_COMMAND, body=SimpleNamespace(command=command))[0] for _ in range(2)] == [0, 1000]


def test_authentication_passes():
    scene = Scene(request_percentage=0.001)
    scene.took_ms, scene.access = 1000, NotABroker()
    assert [scene.ask(apis.SASL_AUTHENTICATE)[0] for _ in range(3)] == [None, None, None]


@pytest.mark.parametrize("api", [apis.SKEP_COMMAND, apis.WRITE_TXN_MARKERS])
def test_a_response_without_a_throttle_time_can_be_encoded_for_a_throttled_client(api):
    body = {"error_code": ErrorCode.none, "error_message": None, "result": b"{}", "markers": ()}
    told = {**body, "throttle_time": timedelta(seconds=1)}
    assert encode_response(api.key, api.newest, 1, told) == encode_response(api.key, api.newest, 1, body)


def test_followers_pass_and_consumers_do_not():
    scene = Scene(request_percentage=0.001)
    scene.took_ms = 1000
    consumer = SimpleNamespace(replica_state=SimpleNamespace(replica_id=-1, replica_epoch=-1))
    assert [scene.ask(apis.FETCH, body=FOLLOWER)[0] for _ in range(3)] == [None, None, None]
    assert [scene.ask(apis.FETCH, body=consumer)[0] for _ in range(2)] == [0, 1000]
    undecoded = (step for step in ())
    assert scene.ask(apis.FETCH, undecoded=undecoded)[0] == 0


def test_the_connection_keeps_the_quotas_of_its_client_until_they_change():
    scene = Scene(producer_byte_rate=1000)
    scene.ask()
    first = scene.connection.quotas
    scene.ask()
    assert scene.connection.quotas is first
    scene.ask(client_id="other")
    assert scene.connection.quotas.client_id == "other"
    scene.quotas.image_changed(ClusterImage.of("c").with_entry(QUOTAS, "user", {"values": {"consumer_byte_rate": 5}}))
    scene.ask(client_id="other")
    assert (scene.connection.quotas.producer, scene.connection.quotas.consumer.rate) == (None, 5)
