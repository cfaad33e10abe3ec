"""When a leader may no longer take its own word for it that it leads, and what it refuses then."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

import pytest

from skep.base.errors import ErrorCode, KafkaError, StoreUnavailable
from skep.base.loop.supervisor import Supervisor
from skep.replication.isr_updater import IsrUpdater
from skep.replication.partition.leadership_lease import LeadershipLease
from skep.replication.upkeep.segment_deletion import SegmentDeletion
from tests.unit.replication.partition.test_partition_replicated import (
    BATCH,
    HEADER,
    ONE,
    THREE,
    TWO,
    Replica,
    led,
    record,
)

BOUND_MS = 3_000
STEP_MS = 500


class Scene:
    """A leader of three replicas, over time that the test moves; ``store`` says whether the store answers, and what."""

    def __init__(self, leader=None):
        self.leader = leader or led()
        self.partition, self.clock = self.leader.partition, self.leader.clock
        self.partition.lease = self.lease = LeadershipLease(self.clock, 2 * BOUND_MS / 1000)
        self.store = True
        self.fetching = [TWO, THREE]
        self.renew()

    def renew(self):
        async def is_registered():
            if self.store is None:
                raise StoreUnavailable("away")
            return self.store

        asyncio.run(self.lease.renew(is_registered))

    def pass_time(self, milliseconds):
        """In steps, at each of which the broker ticks, asks the store, and hears from those who fetch."""
        for _ in range(milliseconds // STEP_MS):
            self.clock.advance_ms(STEP_MS)
            self.lease.tick()
            self.renew()
            self.hear(*self.fetching)

    def hear(self, *brokers):
        for broker in brokers:
            self.partition.follower_fetched(broker, self.partition.log.log_end_offset, -1)

    @property
    def leads(self):
        try:
            self.partition.check_leads()
        except KafkaError as error:
            assert error.code is ErrorCode.not_leader_or_follower
            return False
        return True


def test_a_leader_that_hears_the_store_leads_though_its_followers_are_silent():
    scene = Scene()
    scene.fetching = []
    scene.pass_time(10 * BOUND_MS)
    assert scene.leads


def test_a_leader_that_hears_all_its_followers_leads_though_the_store_is_away():
    scene = Scene()
    scene.store = None
    scene.pass_time(10 * BOUND_MS)
    assert scene.leads


@pytest.mark.parametrize("answer", [None, False], ids=["away", "our session is over"])
def test_one_silent_member_of_the_isr_may_be_the_next_leader_when_the_store_does_not_vouch_for_us(answer):
    scene = Scene()
    scene.store = answer
    scene.fetching = [TWO]
    scene.pass_time(BOUND_MS)
    assert scene.leads, "not before the bound"
    scene.pass_time(STEP_MS)
    assert not scene.leads
    scene.hear(THREE)
    assert scene.leads


def test_a_replica_outside_the_isr_need_not_be_heard_of():
    scene = Scene(led(isr=(ONE, TWO)))
    scene.store, scene.fetching = None, [TWO]
    scene.pass_time(10 * BOUND_MS)
    assert scene.leads


@pytest.mark.parametrize("is_alone_in", ["the isr", "the replicas"])
def test_a_leader_that_nobody_can_succeed_leads_on(is_alone_in):
    leader = led(isr=(ONE,))
    if is_alone_in == "the replicas":
        leader.partition.lead(ONE, record(isr=(ONE,), epoch=4, replicas=(ONE,)))
    scene = Scene(leader)
    scene.store, scene.fetching = None, []
    scene.pass_time(10 * BOUND_MS)
    assert scene.leads


def test_a_member_of_an_isr_that_is_only_proposed_counts():
    scene = Scene(led(isr=(ONE,)))
    scene.partition.in_sync.propose((ONE, TWO))
    scene.store, scene.fetching = None, []
    scene.pass_time(BOUND_MS + STEP_MS)
    assert not scene.leads


@pytest.mark.parametrize("ticks_first", [True, False])
def test_after_a_freeze_fetches_from_before_it_do_not_count_until_the_store_has_answered(ticks_first):
    scene = Scene()
    scene.pass_time(BOUND_MS)
    scene.clock.advance_ms(4 * BOUND_MS)
    if ticks_first:
        scene.lease.tick()
    scene.hear(TWO, THREE)
    assert not scene.leads
    scene.lease.tick()
    scene.hear(TWO, THREE)
    assert not scene.leads
    scene.renew()
    assert scene.leads
    scene.store = None
    scene.pass_time(10 * BOUND_MS)
    assert scene.leads, "by its followers, whom it has heard of since"


def test_an_answer_of_the_store_counts_from_the_question():
    scene = Scene()
    scene.store, scene.fetching = None, []
    scene.pass_time(2 * BOUND_MS)

    async def answered_late():
        scene.clock.advance_ms(BOUND_MS - 1)
        return True

    asyncio.run(scene.lease.renew(answered_late))
    assert scene.leads
    scene.clock.advance_ms(1)
    assert not scene.leads


def test_an_answer_that_took_longer_than_the_bound_is_none():
    scene = Scene()
    scene.pass_time(BOUND_MS)

    async def answered_after_a_freeze():
        scene.clock.advance_ms(4 * BOUND_MS)
        scene.lease.tick()
        return True

    asyncio.run(scene.lease.renew(answered_after_a_freeze))
    scene.hear(TWO, THREE)
    assert not scene.leads


def test_without_a_lease_a_leader_leads():
    assert not Replica().partition.is_lease_expired


def test_other_brokers_are_asked_about_what_they_may_lead_and_whoever_waits_is_sent_to_them():
    scene, asked = Scene(), []

    async def ask(topics):
        asked.append(set(topics))

    async def check(waiting):
        await IsrUpdater(ONE, None, None, scene.clock, ask).check_leases([scene.partition])
        await asyncio.sleep(0)
        return waiting.done()

    async def scenario():
        _, waiting = scene.partition.append(BATCH, HEADER)
        assert not await check(waiting)
        assert asked == []
        scene.clock.advance_ms(2 * BOUND_MS)
        assert await check(waiting)
        assert waiting.exception().code is ErrorCode.not_leader_or_follower
        assert asked == [{"t"}]

    asyncio.run(scenario())


def test_a_leader_whose_lease_is_over_expires_nothing():
    async def scenario():
        supervisor = Supervisor()
        with ThreadPoolExecutor(1) as executor:
            segment_deletion = SegmentDeletion(scene.clock, executor, supervisor)
            assert segment_deletion.delete_expired(scene.partition) == 0
            scene.hear(TWO, THREE)
            assert segment_deletion.delete_expired(scene.partition) > 0
            await supervisor.close()

    scene = Scene(led(segment_bytes=200, retention_ms=1000, file_delete_delay_ms=0))
    for _ in range(5):
        scene.partition.append(BATCH, HEADER, acks_all=False)
    scene.hear(TWO, THREE)
    scene.store, scene.fetching = None, []
    scene.pass_time(10 * BOUND_MS)
    asyncio.run(scenario())
