"""Which quota applies to whom, who shares what was used, and what is kept of it."""

import itertools

import pytest

from skep.base.errors import ErrorCode, KafkaError
from skep.metadata.cluster_image import QUOTAS, ClusterImage
from skep.security.principal import ANONYMOUS, Principal
from skep.security.quotas import quotas as quotas_module
from skep.security.quotas.client_quotas import Throttle
from skep.security.quotas.entities import entity_name
from skep.security.quotas.quotas import Quotas, Windows
from tests.manual_clock import ManualClock

ALICE, BOB = Principal("alice"), Principal("bob")
PRECEDENCE = (
    {"user": "alice", "client-id": "app"},
    {"user": "alice", "client-id": None},
    {"user": "alice"},
    {"user": None, "client-id": "app"},
    {"user": None, "client-id": None},
    {"user": None},
    {"client-id": "app"},
    {"client-id": None},
)


class Scene:
    def __init__(self):
        self.clock = ManualClock()
        self.quotas = Quotas(self.clock, Windows())
        self.image = ClusterImage.of("c")

    def set(self, entity, addresses=(), **values):
        fields = {"values": values, "addresses": list(addresses)} if values else None
        self.image = self.image.with_entry(QUOTAS, entity_name(entity), fields)
        self.quotas.image_changed(self.image)

    def rate(self, principal=ALICE, client_id="app"):
        producer = self.quotas.of(principal, client_id).producer
        return None if producer is None else producer.rate


@pytest.fixture
def scene():
    return Scene()


@pytest.mark.parametrize("several", [*itertools.combinations(range(8), 2), tuple(range(8))])
def test_the_most_specific_quota_applies(scene, several):
    for number in several:
        scene.set(PRECEDENCE[number], producer_byte_rate=number + 1)
    assert scene.rate() == min(several) + 1


def test_each_quota_has_its_own_precedence(scene):
    scene.set({"user": "alice"}, consumer_byte_rate=10)
    scene.set({"client-id": "app"}, producer_byte_rate=20, consumer_byte_rate=30)
    found = scene.quotas.of(ALICE, "app")
    assert (found.producer.rate, found.consumer.rate, found.request) == (20, 10, None)


def test_a_quota_of_another_does_not_apply(scene):
    scene.set({"user": "alice", "client-id": "app"}, producer_byte_rate=1)
    assert (scene.rate(BOB), scene.rate(ALICE, "other"), scene.rate(ALICE, None)) == (None, None, None)


def test_a_request_without_a_client_id_has_the_default_one(scene):
    scene.set({"client-id": None}, producer_byte_rate=7)
    assert scene.rate(ANONYMOUS, None) == scene.rate(ANONYMOUS, "") == 7


def test_who_shares_a_quota_is_up_to_the_rule_that_applies(scene):
    scene.set({"user": "alice"}, producer_byte_rate=1)
    scene.set({"client-id": "app"}, producer_byte_rate=2)
    of = scene.quotas.of
    assert of(ALICE, "app").producer is of(ALICE, "other").producer
    assert of(BOB, "app").producer is of(ANONYMOUS, "app").producer
    assert of(BOB, "app").producer is not of(ALICE, "app").producer


def test_a_default_gives_everybody_a_quota_of_their_own(scene):
    scene.set({"user": None}, producer_byte_rate=1)
    of = scene.quotas.of
    assert of(ALICE, "app").producer is of(ALICE, "other").producer
    assert of(ALICE, "app").producer is not of(BOB, "app").producer


def test_a_change_makes_connections_ask_again_and_keeps_what_was_used(scene):
    calls = []
    scene.quotas.on_change = lambda: calls.append(scene.quotas.version)
    scene.set({"user": "alice"}, producer_byte_rate=10)
    before = scene.quotas.of(ALICE, "app")
    before.producer.use(100, scene.clock.monotonic())
    scene.set({"user": "alice"}, producer_byte_rate=50)
    assert not before.is_for(scene.quotas.version, ALICE, "app")
    after = scene.quotas.of(ALICE, "app")
    assert after.is_for(scene.quotas.version, ALICE, "app")
    assert after.producer.wait_s(scene.clock.monotonic()) == (100 - 25) / 50
    scene.set({"user": "alice"})
    assert scene.rate() is None
    assert not scene.quotas.limits_clients
    assert len(calls) == 3


def test_a_request_that_waits_is_not_throttled_by_a_quota_that_was_removed(scene):
    scene.set({"user": "alice"}, consumer_byte_rate=1)
    scene.set({"user": "bob"}, consumer_byte_rate=1)
    alice, bob = (Throttle(scene.quotas.of(who, "app"), 0) for who in (ALICE, BOB))
    scene.set({"user": "alice"})
    scene.quotas.of(BOB, "other")
    for throttle in (alice, bob):
        throttle.consumed(1000, scene.clock.monotonic())
    assert (alice.ms, bob.ms > 0) == (0, True)
    scene.set({"user": "bob"})
    bob.ms = 0
    bob.consumed(1000, scene.clock.monotonic())
    assert bob.ms == 0


def test_an_image_with_the_same_quotas_changes_nothing(scene):
    scene.set({"user": "alice"}, producer_byte_rate=10)
    version = scene.quotas.version
    scene.quotas.image_changed(scene.image.with_entry("users", "alice", {}))
    assert scene.quotas.version == version


def test_idle_clients_are_forgotten_and_busy_ones_are_not(scene):
    scene.set({"client-id": None}, producer_byte_rate=1000)
    busy = scene.quotas.of(ALICE, "busy").producer
    for number in range(5000):
        scene.quotas.of(ALICE, f"client-{number}").producer.use(1, scene.clock.monotonic())
        busy.use(20, scene.clock.monotonic())
        scene.clock.advance_ms(10)
    assert len(scene.quotas._buckets) <= 2000
    assert scene.quotas.of(ALICE, "busy").producer is busy


def test_clients_beyond_the_limit_share_what_they_may_use(scene, monkeypatch):
    monkeypatch.setattr(quotas_module, "MAX_BUCKETS", 10)
    scene.set({"client-id": None}, producer_byte_rate=1000)
    for number in range(1000):
        last = scene.quotas.of(ALICE, f"client-{number}").producer
        last.use(10_000, scene.clock.monotonic())
    assert len(scene.quotas._buckets) == 11
    assert last is scene.quotas.of(ALICE, "client-11").producer


def test_clients_beyond_the_limit_with_other_rates_forgive_each_other_nothing(scene, monkeypatch):
    monkeypatch.setattr(quotas_module, "MAX_BUCKETS", 0)
    scene.set({"user": "alice"}, producer_byte_rate=1000)
    scene.set({"user": "bob"}, producer_byte_rate=1)
    now = scene.clock.monotonic()
    assert scene.quotas.of(ALICE, "app").producer.use(10_500, now) == 10
    assert scene.quotas.of(BOB, "app").producer.wait_s(now) == 0
    assert scene.quotas.of(ALICE, "app").producer.wait_s(now) == 10


def test_new_connections_of_an_address_wait_for_their_turn(scene):
    scene.set({"ip": None}, connection_creation_rate=1)
    scene.set({"ip": "10.0.0.7"}, connection_creation_rate=2)
    wait = scene.quotas.connection_wait_s
    assert [wait("10.0.0.7", {}) for _ in range(4)] == [0, 0, 0.5, 1]
    scene.clock.advance_ms(500)
    assert [wait("::ffff:10.0.0.7", {})] == [1]
    assert [wait("10.0.0.8", {}) for _ in range(2)] == [0, 1]


def test_the_addresses_of_a_host_name_have_its_quota(scene):
    scene.set({"ip": "skep.example"}, ["10.0.0.1", "10.0.0.2"], connection_creation_rate=1)
    wait = scene.quotas.connection_wait_s
    assert [wait("10.0.0.1", {}) for _ in range(2)] == [0, 1]
    assert [wait("10.0.0.2", {}) for _ in range(2)] == [0, 1]
    assert [wait("10.0.0.3", {}) for _ in range(2)] == [0, 0]


def test_connections_of_all_addresses_have_a_rate_too(scene):
    wait = scene.quotas.connection_wait_s
    assert [wait(f"10.0.0.{number}", {"broker": 2, "listener": 1}) for number in range(2)] == [0, 1]


def test_a_connection_that_would_wait_too_long_is_refused_and_counts_nowhere(scene):
    scene.set({"ip": "10.0.0.7"}, connection_creation_rate=1)
    wait = scene.quotas.connection_wait_s
    assert [wait("10.0.0.7", {"broker": 2}) for _ in range(100)] == [0, 1] + [None] * 98
    assert wait("10.0.0.8", {"broker": 2}) == 0.5


def test_many_clients_that_give_up_and_connect_again_are_served_at_the_rate(scene):
    """A client gives up if its turn is more than 2 s away, and connects again every 2 s until it is served."""
    waiting, served_by = 1000, []
    for _ in range(30):
        waits = [scene.quotas.connection_wait_s("10.0.0.7", {"broker": 20}) for _ in range(waiting)]
        waiting -= sum(wait_s is not None and wait_s < 2 for wait_s in waits)
        served_by.append(1000 - waiting)
        scene.clock.advance_ms(2000)
    assert served_by[:3] == [40, 80, 120]
    assert served_by[-1] == 1000


def test_a_lower_rate_of_connections_locks_nobody_out(scene):
    wait = scene.quotas.connection_wait_s
    assert wait("10.0.0.7", {"broker": 1000}) == 0
    for _ in range(1000):
        wait("10.0.0.7", {"broker": 1000})
    assert wait("10.0.0.7", {"broker": 1}) is None
    scene.clock.advance_ms(1000)
    assert wait("10.0.0.7", {"broker": 1}) is not None


def test_a_burst_of_mutations_is_as_long_as_kafkas(scene):
    scene.set({"user": "alice"}, controller_mutation_rate=2)
    now = scene.clock.monotonic()
    throttle = Throttle(scene.quotas.of(ALICE, "app"), 0)
    throttle.mutated(24, now, is_strict=True)  # the quota is not exceeded before, so this passes
    assert throttle.ms == 0
    with pytest.raises(KafkaError, match="try again in 1000 ms") as refused:
        throttle.mutated(1, now, is_strict=True)
    assert refused.value.code is ErrorCode.throttling_quota_exceeded
    assert throttle.ms == 1000
    older = Throttle(scene.quotas.of(ALICE, "app"), 0)
    older.mutated(2, now, is_strict=False)
    assert older.ms == 2000


def test_a_consumer_over_its_quota_gets_no_records(scene):
    scene.set({"user": "alice"}, consumer_byte_rate=1000)
    now = scene.clock.monotonic()
    throttle = Throttle(scene.quotas.of(ALICE, "app"), 0)
    assert not throttle.refuses_records(now)
    assert throttle.fetch_limit(10_000) == 250
    throttle.consumed(700, now)
    assert throttle.ms == 200
    following = Throttle(scene.quotas.of(ALICE, "app"), 0)
    assert following.refuses_records(now + 0.1)
    assert following.ms == 100
    assert not Throttle(scene.quotas.of(ALICE, "app"), 0).refuses_records(now + 0.21)
