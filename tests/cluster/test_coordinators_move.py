"""Coordinators that die, stop or freeze: groups and transactions go on elsewhere, and nothing promised is lost."""

import contextlib
import random
import threading
from collections.abc import Callable, Iterator

import pytest

from skep.base.errors import ErrorCode
from skep.testing import EmbeddedCluster
from skep.wire import apis
from tests.cluster.coordinators import (
    COORDINATOR_PARTITIONS,
    assert_no_bug_was_logged,
    bring_back,
    coordinator_of,
    running_cluster,
    transaction_coordinator_of,
)
from tests.cluster.driving import ask
from tests.cluster.group_riders import TOPIC, committed_in, party_of
from tests.cluster.transactors import LEDGER, Transactor
from tests.scenario.exactly_once_worker import INPUT, OUTPUT
from tests.scenario.test_exactly_once import WORKERS, Feeder, Guest, kitchen_of, seed
from tests.waiting import wait_until

pytestmark = pytest.mark.xdist_group(__name__)

ENDS = ["kill", "stop", "pause"]
GROUP = "riders"
DEATHS = 8


@pytest.fixture(scope="module", params=["sqlite", "zookeeper"])
def cluster(request: pytest.FixtureRequest) -> Iterator[EmbeddedCluster]:
    with running_cluster(request.param, TOPIC, LEDGER, INPUT, OUTPUT) as started:
        yield started


def named_coordinator(cluster: EmbeddedCluster, i: int, group: str) -> tuple[int, str] | None:
    """Whom broker ``i`` names, and where; None while it knows of none."""
    [found] = ask(cluster, i, apis.FIND_COORDINATOR, 6, key_type=0, coordinator_keys=[group]).coordinators
    return (found.node_id, f"{found.host}:{found.port}") if found.error_code is ErrorCode.none else None


def group_answers(cluster: EmbeddedCluster, i: int, group: str) -> tuple[ErrorCode, ErrorCode]:
    """What broker ``i`` says to an OffsetFetch, and to a Heartbeat of a member that nobody knows."""
    [fetched] = ask(cluster, i, apis.OFFSET_FETCH, 8, groups=[{"group_id": group, "topics": None}]).groups
    beat = ask(cluster, i, apis.HEARTBEAT, 4, group_id=group, generation_id=1, member_id="nobody")
    return fetched.error_code, beat.error_code


@pytest.mark.parametrize("group", [f"{GROUP}-{number}" for number in range(COORDINATOR_PARTITIONS)])
def test_every_broker_names_the_coordinator_and_only_that_one_answers_for_the_group(
    cluster: EmbeddedCluster, group: str
) -> None:
    cluster.wait_until_in_sync()
    # The first question creates the internal topic.
    wait_until(lambda: all(named_coordinator(cluster, i, group) for i in cluster.brokers), "all know of one", 120)
    answered = (ErrorCode.none, ErrorCode.unknown_member_id)
    refused = (ErrorCode.not_coordinator, ErrorCode.not_coordinator)

    def seen() -> tuple[set[tuple[int, str] | None], dict[int, tuple[ErrorCode, ErrorCode]]]:
        named = {named_coordinator(cluster, i, group) for i in cluster.brokers}
        return named, {i: group_answers(cluster, i, group) for i in cluster.brokers}

    def is_so() -> bool:
        # Looked at again as a whole: a session that is lost on a busy machine moves the coordinator.
        right = coordinator_of(cluster, group)
        expected = {i: answered if i == right else refused for i in cluster.brokers}
        return right in cluster.running and seen() == ({(right, cluster.brokers[right])}, expected)

    wait_until(is_so, lambda: f"all name the one that answers: {seen()}", 120)


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("members", [1, 3])
def test_a_group_rides_through_the_loss_of_its_coordinator_without_losing_a_commit(
    cluster: EmbeddedCluster, members: int, end: str
) -> None:
    group = f"{GROUP}-{members}-{end}"
    cluster.wait_until_in_sync()
    with party_of(cluster, group, members) as party:
        lost, before = coordinator_of(cluster, group), dict(party.told)
        end_broker: Callable[[int], None] = getattr(cluster, end)
        end_broker(lost)
        wait_until(lambda: coordinator_of(cluster, group) not in (lost, -1), "another coordinator")
        # Read while the riders are silent: so it is what was committed before, and nothing that was said again.
        found = committed_in(cluster, group)
        assert {p: offset for p, offset in before.items() if found.get(p, -1) < offset} == {}, (before, found)
        party.ride()
        bring_back(cluster, lost)
        party.ride()
        party.check_nothing_is_lost()
    assert_no_bug_was_logged(cluster)


@pytest.mark.parametrize("end", ENDS)
def test_a_transaction_that_loses_its_coordinator_under_way_is_committed_by_the_next(
    cluster: EmbeddedCluster, end: str
) -> None:
    name = f"writer-{end}"
    cluster.wait_until_in_sync()
    with contextlib.closing(Transactor(cluster.bootstrap_servers, name)) as transactor:
        transactor.go_on()
        lost = transaction_coordinator_of(cluster, name)
        end_broker: Callable[[int], None] = getattr(cluster, end)
        transactor.go_on(under_way=lambda: end_broker(lost))
        assert transactor.doubtful == set()
        wait_until(lambda: transaction_coordinator_of(cluster, name) not in (lost, -1), "another coordinator")
        bring_back(cluster, lost)
        transactor.go_on()
        transactor.check_all_or_nothing()
    assert_no_bug_was_logged(cluster)


def test_transactions_are_exactly_once_while_brokers_and_workers_die(cluster: EmbeddedCluster) -> None:
    chance = random.Random(seed())
    cluster.wait_until_in_sync()
    servers = cluster.bootstrap_servers
    feeder, guest = Feeder(servers), Guest(servers)
    feeder.start()
    with contextlib.closing(guest), kitchen_of(servers) as kitchen:
        for number in range(DEATHS):
            before = guest.seen.total()
            wait_until(lambda before=before: kitchen.staff() or guest.read_on() > before, "more to be boiled", 120)
            # Not waiting for a condition, but choosing the moment of death.
            threading.Event().wait(chance.random() * 0.5)
            if number % 2 == 0:
                # The busiest ones: the coordinator of a worker, that of the group, any.
                victim = (
                    transaction_coordinator_of(cluster, chance.choice(WORKERS)),
                    coordinator_of(cluster, "kitchen"),
                    chance.choice(list(cluster.brokers)),
                )[number // 2 % 3]
                if victim in cluster.running:
                    cluster.kill(victim)
                    wait_until(lambda before=before: kitchen.staff() or guest.read_on() > before, "more boiled", 120)
                    cluster.restart(victim)
                    cluster.wait_until_in_sync()
            else:
                kitchen.kill(chance.choice(WORKERS))
            kitchen.staff()
        feeder.stop()
        wait_until(lambda: kitchen.staff() or guest.read_on() >= feeder.fed, "all to be boiled", 180)
        guest.read_on()
    expected = {b"boiled-%d" % number: 1 for number in range(feeder.fed)}
    assert {egg: count for egg, count in guest.seen.items() if expected.get(egg) != count} == {}
    assert expected.keys() - guest.seen.keys() == set()
    assert_no_bug_was_logged(cluster)
