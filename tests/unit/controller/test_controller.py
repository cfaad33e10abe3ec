"""The controller: one of several brokers, on a real store; what it does when brokers, and it itself, come and go."""

import asyncio
import contextlib
import functools
import logging
from dataclasses import replace

import pytest

from skep.base.clock import SystemClock
from skep.base.config.broker_config import read_broker_config
from skep.base.config.current_config import CurrentConfig
from skep.base.errors import Fenced, StoreUnavailable
from skep.controller import controller as module
from skep.controller.controller import Controller
from skep.metadata.catalog import Catalog
from skep.metadata.model import NO_LEADER, BrokerRecord, ControllerRecord
from skep.metadata.sqlite.sqlite_store import SqliteStore
from tests.unit.controller.clusters import partition

NO_REBALANCE = {"auto.leader.rebalance.enable": "false"}


def in_event_loop(test):
    @functools.wraps(test)
    def run(*args, **kwargs):
        asyncio.run(asyncio.wait_for(test(*args, **kwargs), 60))

    return run


class Node:
    """A broker as far as the controller goes: a session with the store, a registration, and a controller."""

    def __init__(self, directory, number, options):
        self.number = number
        self.config = CurrentConfig(read_broker_config({**NO_REBALANCE, **options}))
        self.store = SqliteStore(directory / "m.db", poll_interval_s=0.01)
        self.catalog = Catalog(self.store)
        self.controller = Controller(self.catalog, number, self.config, SystemClock())
        self.record = BrokerRecord(number, "h", 9000 + number)

    async def start(self, registered=True):
        await self.store.open()
        await self.catalog.open()
        self.catalog.on_change(self.controller.image_changed)
        if registered:
            self.record = await self.catalog.register_broker(self.record)
        self.controller.start()

    async def die(self):
        """As a killed process does: nothing is written any more, and the session ends."""
        await self.controller._tasks.close()
        await self.catalog.close()
        await self.store.close()

    async def stop(self):
        await self.controller.stop()
        await self.die()

    def partitions(self, topic="t"):
        return self.catalog.image.topics[topic].partitions

    async def until(self, condition):
        changed = asyncio.Event()
        self.catalog.on_change(lambda old, new: changed.set())
        while not condition():
            await changed.wait()
            changed.clear()


@contextlib.asynccontextmanager
async def cluster(directory, count=3, **options):
    """The first broker is the controller."""
    nodes = [Node(directory, number + 1, options) for number in range(count)]
    for node in nodes:
        await node.start()
        await node.until(lambda node=node: node.catalog.image.controller is not None)
    for node in nodes:
        await node.until(lambda node=node: len(node.catalog.image.brokers) == count)
    try:
        yield nodes
    finally:
        for node in nodes:
            with contextlib.suppress(StoreUnavailable):
                await node.stop()


def leader_is(node, number):
    return lambda: "t" in node.catalog.image.topics and node.partitions()[0].leader == number


@in_event_loop
async def test_the_first_broker_is_the_controller_and_the_others_know_it(tmp_path):
    async with cluster(tmp_path) as (one, two, three):
        assert [node.catalog.image.controller.broker_id for node in (one, two, three)] == [1, 1, 1]
        assert [node.controller.is_active for node in (one, two, three)] == [True, False, False]


@in_event_loop
async def test_a_dead_leader_is_replaced_and_one_that_is_back_does_not_lead_by_itself(tmp_path):
    async with cluster(tmp_path) as (one, two, three):
        await two.catalog.create_topic("t", [[2, 3, 1], [1, 2, 3], [3, 1, 2]])
        await two.die()
        await three.until(leader_is(three, 3))
        assert three.partitions() == (
            partition([2, 3, 1], isr=[3, 1], leader=3, epoch=1, last_isr=[2, 3, 1]),
            partition([1, 2, 3], isr=[1, 3], epoch=0, last_isr=[1, 2, 3]),
            partition([3, 1, 2], isr=[3, 1], epoch=0, last_isr=[3, 1, 2]),
        )
        two = Node(tmp_path, 2, {})
        await two.start()
        await one.until(lambda: 2 in one.catalog.image.brokers)
        assert two.partitions() == three.partitions()
        await two.stop()


@in_event_loop
async def test_the_death_of_the_controller_is_seen_to_by_the_next_one(tmp_path):
    async with cluster(tmp_path) as (one, two, three):
        await one.catalog.create_topic("t", [[1, 2, 3]])
        await one.die()
        await two.until(leader_is(two, 2))
        assert sorted([two.controller.is_active, three.controller.is_active]) == [False, True]
        assert two.catalog.image.controller.epoch == 2


@in_event_loop
async def test_a_controller_that_stops_lets_another_take_over_while_its_session_lasts(tmp_path):
    async with cluster(tmp_path, count=2) as (one, two):
        await one.controller.stop()
        await two.until(lambda: two.controller.is_active)
        assert not one.controller.is_active
        assert 1 in two.catalog.image.brokers


@in_event_loop
async def test_a_broker_that_stops_is_relieved_and_one_alone_in_sync_is_not(tmp_path):
    async with cluster(tmp_path, count=2) as (one, two):
        await one.catalog.create_topic("t", [[2, 1], [2]])
        await two.until(lambda: "t" in two.catalog.image.topics)
        await two.catalog.update_registration(replace(two.record, stopping=True))
        await two.until(leader_is(two, 1))
        assert two.partitions() == (
            partition([2, 1], isr=[1], leader=1, epoch=1, last_isr=[2, 1]),
            partition([2], epoch=0),
        )


@in_event_loop
async def test_whoever_is_not_registered_or_stops_does_not_become_controller(tmp_path):
    lone = Node(tmp_path, 1, {})
    await lone.start(registered=False)
    other = Node(tmp_path, 2, {})
    other.record = replace(other.record, stopping=True)
    await other.start()
    await lone.until(lambda: 2 in lone.catalog.image.brokers)
    third = Node(tmp_path, 3, {})
    await third.start()
    await lone.until(lambda: lone.catalog.image.controller is not None)
    assert lone.catalog.image.controller.broker_id == 3
    for node in (lone, other, third):
        await node.stop()


@in_event_loop
async def test_all_dead_and_back_one_by_one_the_first_in_sync_leads(tmp_path):
    async with cluster(tmp_path, count=3) as (one, two, three):
        await one.catalog.create_topic("t", [[2, 3]])
        await two.die()
        await one.until(leader_is(one, 3))
        await three.die()
        await one.until(leader_is(one, NO_LEADER))
        assert one.partitions() == (partition([2, 3], isr=[3], leader=NO_LEADER, epoch=2, last_isr=[2, 3]),)
        two, three = Node(tmp_path, 2, {}), Node(tmp_path, 3, {})
        await two.start()
        await one.until(lambda: 2 in one.catalog.image.brokers)
        await three.start()
        await one.until(leader_is(one, 3))
        assert one.partitions() == (partition([2, 3], isr=[3], leader=3, epoch=3, last_isr=[2, 3]),)
        for node in (two, three):
            await node.stop()


@in_event_loop
@pytest.mark.parametrize("how", ["topic", "all brokers"])
async def test_allowing_unclean_elections_takes_effect_for_what_is_without_a_leader_already(tmp_path, how):
    async with cluster(tmp_path, count=2) as (one, two):
        await one.catalog.create_topic("t", [[2, 1]])

        def shrink(topic):
            return replace(topic, partitions=(partition([2, 1], isr=[2], epoch=0),))

        await one.catalog.change_topic("t", shrink)
        await two.die()
        await one.until(leader_is(one, NO_LEADER))
        unclean = {"unclean.leader.election.enable": "true"}
        if how == "topic":
            await one.catalog.alter_topic_config("t", lambda _: unclean)
        else:
            one.config.value = read_broker_config({**NO_REBALANCE, **unclean})
            await one.catalog.alter_broker_config("", lambda _: unclean)
        await one.until(leader_is(one, 1))
        assert one.partitions() == (partition([2, 1], isr=[1], leader=1, epoch=2),)


@in_event_loop
async def test_a_reassignment_is_finished_when_its_leader_has_taken_the_new_copies_into_the_isr(tmp_path):
    async with cluster(tmp_path) as (one, two, _):
        await two.catalog.create_topic("t", [[2]])
        under_way = partition([3, 2], isr=[2], leader=2, epoch=0, adding=[3], removing=[2])
        await two.catalog.change_topic("t", lambda topic: replace(topic, partitions=(under_way,)))
        caught_up = under_way._replace(isr=(2, 3))
        await two.catalog.change_topic("t", lambda topic: replace(topic, partitions=(caught_up,)))
        await one.until(leader_is(one, 3))
        assert one.partitions() == (partition([3], epoch=1),)


@in_event_loop
async def test_leaders_go_back_to_the_first_replica_when_the_timer_says_so(tmp_path):
    options = {"auto.leader.rebalance.enable": "true", "leader.imbalance.check.interval.seconds": "1"}
    async with cluster(tmp_path, count=2, **options) as (one, two):
        await one.catalog.create_topic("t", [[2, 1]])
        moved = partition([2, 1], leader=1, epoch=1)
        await two.until(lambda: "t" in two.catalog.image.topics)
        await two.catalog.change_topic("t", lambda topic: replace(topic, partitions=(moved,)))
        await two.until(leader_is(two, 2))
        assert two.partitions() == (partition([2, 1], epoch=2),)


@in_event_loop
async def test_a_topic_that_another_changed_first_is_decided_again_from_what_is_there_now(tmp_path):
    async with cluster(tmp_path) as (one, two, three):
        await one.catalog.create_topic("t", [[2, 3, 1]])
        await three.until(lambda: "t" in three.catalog.image.topics)
        put_topics, lost = one.catalog.put_topics, []

        async def put_late(controllership, topics):
            if not lost:
                # 3 has left the ISR just now: it must not become the leader.
                shrunk = partition([2, 3, 1], isr=[2, 1], epoch=0)
                await three.catalog.change_topic("t", lambda topic: replace(topic, partitions=(shrunk,)))
            lost.append(await put_topics(controllership, topics))
            return lost[-1]

        one.catalog.put_topics = put_late
        await two.die()
        await one.until(leader_is(one, 1))
        assert lost[0] == ["t"]
        assert one.partitions() == (partition([2, 3, 1], isr=[1], leader=1, epoch=1, last_isr=[2, 1]),)


@in_event_loop
async def test_what_changes_while_a_pass_is_being_written_is_looked_at_after_it(tmp_path):
    async with cluster(tmp_path) as (one, two, _):
        for name in ("t", "u"):
            await one.catalog.create_topic(name, [[2, 1]])
        put_topics, passes = one.catalog.put_topics, []

        async def put_and_change(controllership, topics):
            result = await put_topics(controllership, topics)
            passes.append(sorted(topic.name for topic in topics))
            if len(passes) == 1:
                # In the image of the controller before its pass has ended: 2, which is dead, leads again.
                back = partition([2, 1], epoch=7)
                await one.catalog.change_topic("u", lambda topic: replace(topic, partitions=(back,)))
            return result

        one.catalog.put_topics = put_and_change
        await two.die()
        await one.until(lambda: one.partitions("u")[0].leader_epoch == 8)
        assert passes == [["t", "u"], ["u"]]
        assert one.partitions("u") == (partition([2, 1], isr=[1], leader=1, epoch=8, last_isr=[2, 1]),)


@in_event_loop
async def test_an_older_controller_that_wakes_up_is_fenced_and_writes_nothing(tmp_path):
    async with cluster(tmp_path) as (one, two, three):
        await one.catalog.create_topic("t", [[3, 1, 2]])
        # Frozen: its image does not follow any more. Its session is taken for dead, so its keys go.
        one.catalog._current._watch.close()
        await two.store.delete("controller")
        await two.store.delete("brokers/1")
        await two.until(lambda: two.catalog.image.controller is not None and two.catalog.image.controller.epoch == 2)
        await two.until(lambda: two.partitions()[0].isr == (3, 2))
        # It wakes up, and believes of the others what they now believe of it.
        stale = one.catalog.image
        one.catalog._current.set_image(stale.without_broker(3))
        while one.controller.is_active:
            await asyncio.sleep(0.01)
        with pytest.raises(Fenced):
            await one.catalog.put_topics(
                module.Controllership(stale.controller, ("controller-epoch", 1)), [stale.topics["t"]]
            )
        # Nor does it depose the new one while it knows no better.
        one.controller.image_changed(stale, one.catalog.image)
        while one.controller._news.is_set():
            await asyncio.sleep(0.01)
        assert not one.controller.is_active
        entry = await two.store.get("controller")
        assert ControllerRecord.decode(entry.value) == two.catalog.image.controller == three.catalog.image.controller
        assert two.partitions() == (partition([3, 1, 2], isr=[3, 2], epoch=0, last_isr=[3, 1, 2]),)


@in_event_loop
async def test_while_the_store_is_away_it_is_tried_again_and_nothing_is_forgotten(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(module, "RETRY_PAUSE_S", 0.01)
    async with cluster(tmp_path, count=2) as (one, two):
        await one.catalog.create_topic("t", [[2, 1]])
        put_topics, tries = one.catalog.put_topics, []

        async def fail_twice(controllership, topics):
            tries.append(1)
            if len(tries) <= 2:
                raise StoreUnavailable("nobody home")
            return await put_topics(controllership, topics)

        one.catalog.put_topics = fail_twice
        with caplog.at_level(logging.WARNING):
            await two.die()
            await one.until(leader_is(one, 1))
        assert len(tries) == 3
        assert caplog.text.count("nobody home") == 2


@in_event_loop
async def test_a_session_that_ended_ends_the_controllership_and_it_may_be_won_again(tmp_path):
    async with cluster(tmp_path, count=1) as (one,):
        epoch = one.catalog.image.controller.epoch
        one.controller.session_ended()
        assert not one.controller.is_active
        await one.store.delete("controller")
        await one.until(lambda: (now := one.catalog.image.controller) is not None and now.epoch > epoch)
        while not one.controller.is_active:
            await asyncio.sleep(0.01)


@in_event_loop
async def test_a_pass_that_changes_something_is_one_line_in_the_log(tmp_path, caplog):
    async with cluster(tmp_path, count=2) as (one, two):
        await one.catalog.create_topic("t", [[2, 1], [1, 2]])

        def lines():
            return [message for message in caplog.messages if "partitions changed" in message]

        with caplog.at_level(logging.INFO, logger=module.__name__):
            await two.die()
            while not lines():
                await asyncio.sleep(0.01)
            await one.catalog.create_topic("u", [[1]])
            await one.controller.stop()  # after the pass that looked at the new topic, and had nothing to say of it
        (line,) = lines()
        assert "2 partitions changed, 1 new leaders, 2 left an ISR; 1 topics" in line
