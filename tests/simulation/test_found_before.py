"""Schedules that once broke a promise, step by step. The walker would find them again, but not in every run."""

import asyncio
from dataclasses import replace
from unittest.mock import patch

import pytest

from skep.base.ids import BrokerId, TopicPartition
from skep.controller.elections import Liveness
from skep.controller.reassignment import begun
from skep.metadata.layout import topic_key
from skep.metadata.model import NO_LEADER
from tests.simulation import planted
from tests.simulation.cluster import Cluster
from tests.simulation.cluster_state import Shape
from tests.simulation.model_store import TOPIC, Call
from tests.simulation.walking import quiet

ALONE = Shape(brokers=2, min_insync_replicas=1, in_sync=1)
"""Broker 1 leads, is alone in the ISR, and has one record; broker 2 has nothing yet."""


begun_by_the_rules = begun


class Script:
    """A cluster whose steps are named one by one. What each must not break is checked after it."""

    def __init__(self, shape):
        self.cluster = Cluster(shape, is_traced=True)
        self.told = []

    def make(self, kind, which, how=1):
        """``which`` picks among what can happen; a broker's id, or a function."""
        candidates = getattr(self.cluster, "_can_" + kind)()
        chosen = next(one for one in candidates if which(one))
        self.told.append(getattr(self.cluster, "_do_" + kind)(chosen, how))
        self.cluster.check()

    def by(self, kind, broker, how=1):
        self.make(kind, lambda process: getattr(process, "id", process) == broker, how)

    def fetch(self, follower):
        self.make("round", lambda choice: choice[0].process.id == follower)

    def produce(self, leader):
        self.make("produce", lambda choice: choice[0].id == leader, 3)

    def delete(self, leader):
        """All that is committed; it is not checkpointed."""
        self.make("delete", lambda choice: choice[0].id == leader, 1)

    def sync(self, broker):
        self.cluster._do_sync(self.cluster.disks[BrokerId(broker)].logs[TopicPartition(TOPIC, 0)], 0)

    def process(self, broker):
        return self.cluster.processes[BrokerId(broker)]

    def log(self, broker):
        return self.cluster.disks[BrokerId(broker)].held(0).entries

    def reassign(self, *target):
        """As AlterPartitionReassignments writes it, whichever broker is asked."""
        store = self.cluster.store
        brokers = Liveness(frozenset(self.cluster.processes), frozenset(self.cluster.processes))
        changed = replace(store.topic, partitions=(begun_by_the_rules(store.topic.partitions[0], target, brokers),))
        store.execute(Call("put", topic_key(TOPIC), changed.encode(), None))


def scripted(shape):
    """The test runs on an event loop, as the futures of acknowledgements are made on one."""

    def decorate(test):
        async def run():
            script = Script(shape)
            try:
                test(script)
            finally:
                script.cluster.close()

        def wrapped():
            with quiet():
                asyncio.run(run())

        wrapped.__name__, wrapped.__doc__ = test.__name__, test.__doc__
        return wrapped

    return decorate


@scripted(ALONE)
def test_a_follower_that_falls_behind_while_the_store_is_asked_does_not_join(script):
    script.fetch(2)
    script.fetch(2)
    script.by("isr", 1, how=0)
    script.produce(1)
    script.by("finish", 1)
    script.produce(1)


@scripted(Shape(brokers=3, in_sync=2))
def test_a_broker_that_lost_records_is_not_elected_between_its_registration_and_its_leaving(script):
    script.by("lose", 2, how=0)
    script.by("start", 2)
    while "brokers/2" not in script.cluster.store.values:
        script.by("answer", 2, how=11)
    script.by("crash", 1, how=0)
    script.by("catch_up", 3)
    script.by("control", 3)
    script.by("finish", 3)


@scripted(ALONE)
def test_a_write_of_the_process_before_changes_nothing_behind_the_back_of_the_next(script):
    script.fetch(2)
    script.fetch(2)
    script.by("isr", 1, how=0)
    script.by("answer", 1, how=11)
    script.by("crash", 1, how=1)
    script.by("start", 1)
    script.make("land", lambda call: True)
    script.make("expire", lambda session: session == 1, how=0)
    while not script.process(1).is_serving:
        script.by("answer", 1, how=11)
    script.produce(1)


@scripted(ALONE)
def test_a_leader_that_lost_records_and_is_alone_in_sync_gives_way_to_who_has_more(script):
    script.fetch(2)
    script.fetch(2)
    lost = script.process(1)
    script.cluster._do_lose(lost, 0)
    assert (script.log(1), len(script.log(2))) == ([], 1)
    script.cluster._do_start(BrokerId(1), 0)
    while not script.process(1).is_serving:
        script.cluster._do_finish(script.process(1), 0)
    script.cluster.come_to_rest()
    assert script.cluster.store.topic.partitions[0].leader == 2
    assert len(script.log(2)) == 1


@scripted(Shape(brokers=3, in_sync=3))
def test_when_all_lose_power_the_last_one_back_does_not_lead_with_what_it_has_left(script):
    """1 and 2 have everything, and have left the ISR when 3 comes back with nothing."""
    commit(script)
    for broker in (1, 2):
        script.sync(broker)
    script.make("power", lambda brokers: len(brokers) == 3, how=0)
    assert [len(script.log(broker)) for broker in (1, 2, 3)] == [2, 2, 0]
    for broker in (1, 2, 3):
        script.by("start", broker)
        script.by("finish", broker)
    script.cluster.come_to_rest()
    assert script.cluster.store.topic.partitions[0].leader != 3
    assert len(script.log(1)) == len(script.log(2)) == 2


@scripted(Shape(brokers=3, in_sync=3))
def test_when_all_lose_power_one_that_came_back_and_died_again_is_waited_for(script):
    script.sync(3)
    commit(script)
    script.sync(1)
    script.make("power", lambda brokers: len(brokers) == 3, how=0)
    assert [len(script.log(broker)) for broker in (1, 2, 3)] == [2, 0, 1]
    for broker in (1, 2):
        script.by("start", broker)
        script.by("finish", broker)
        script.by("crash", broker, how=0)
    script.by("start", 3)
    script.by("finish", 3)
    script.cluster._go_on_with(["control", "finish", "catch_up", "report", "finish", "control", "finish"])
    assert script.cluster.store.topic.partitions[0].leader == NO_LEADER
    script.cluster.come_to_rest()
    assert script.cluster.store.topic.partitions[0].leader == 1


@scripted(Shape(brokers=3, in_sync=3, is_synced=True))
def test_when_all_lose_power_the_first_one_back_leads_a_topic_that_syncs(script):
    commit(script)
    script.make("power", lambda brokers: len(brokers) == 3, how=0)
    script.by("start", 2)
    script.by("finish", 2)
    script.cluster._go_on_with(["catch_up", "control", "finish"])
    record = script.cluster.store.topic.partitions[0]
    assert (record.leader, record.isr) == (2, (2,))


@scripted(Shape(brokers=3, in_sync=3))
def test_one_that_was_left_alone_in_sync_and_loses_power_waits_for_the_others(script):
    """With min.insync.replicas=2, all that was acknowledged was acknowledged with one of them."""
    script.sync(1)
    commit(script)
    for broker in (2, 3):
        script.by("crash", broker, how=0)
    script.make("tick", lambda milliseconds: milliseconds > 10_000)
    script.produce(1)
    script.by("isr", 1)
    assert script.cluster.store.topic.partitions[0].isr == (1,)
    script.make("power", lambda brokers: brokers == (1,), how=0)
    script.by("start", 1)
    script.by("finish", 1)
    script.cluster._go_on_with(["control", "finish", "catch_up", "report", "finish", "control", "finish"])
    script.cluster.come_to_rest()
    assert all(len(script.log(broker)) >= 2 for broker in script.cluster.store.topic.partitions[0].isr)


def commit(script):
    """Another record, which all have and the leader knows to be committed."""
    script.make("produce", lambda choice: choice[0].id == 1, 0)
    for _ in range(2):
        for broker in (2, 3):
            script.fetch(broker)
    assert script.cluster.safety.acknowledged == 2


@scripted(Shape(brokers=3, in_sync=3))
def test_a_replica_that_is_taken_away_and_given_back_is_not_taken_for_what_it_was(script):
    """Broker 3 has removed its copy in between; the leader has heard of both changes at once."""
    script.fetch(2)
    script.fetch(3)
    script.reassign(1, 2)
    script.by("catch_up", 3)
    assert script.log(3) == []
    script.reassign(1, 2, 3)
    script.by("catch_up", 1)
    if script.process(1).wants_isr():
        script.by("isr", 1)


@scripted(Shape(brokers=3, in_sync=2))
def test_when_all_lose_power_a_log_of_which_all_is_deleted_is_as_long_as_its_end_says(script):
    """3, which is not in sync, has nothing but a record that the others have deleted."""
    script.fetch(3)
    script.sync(3)
    script.by("crash", 3, how=0)
    script.produce(1)
    script.fetch(2)
    script.fetch(2)
    script.delete(1)
    script.fetch(2)
    for broker in (1, 2):
        script.sync(broker)
        script.by("checkpoint", broker)
    script.make("power", lambda brokers: len(brokers) == 3, how=0)
    for broker in (3, 2, 1):
        script.by("start", broker)
        script.by("finish", broker)
    script.cluster.come_to_rest()
    assert script.cluster.store.topic.partitions[0].leader != 3


@scripted(ALONE)
def test_a_follower_that_began_anew_past_what_its_leader_lost_has_no_hole(script):
    """1 deletes all, loses the end of its log and the deletion, and goes on before the place where 2 began anew."""
    script.sync(1)
    script.produce(1)
    script.delete(1)
    script.fetch(2)
    assert script.process(2).partitions[0].log.log_start_offset == 2
    script.make("power", lambda brokers: brokers == (1,), how=0)
    script.by("start", 1)
    script.by("finish", 1)
    script.cluster.come_to_rest()
    assert script.cluster.store.topic.partitions[0].leader == 1
    for broker in (1, 2):
        script.by("catch_up", broker)
    script.produce(1)
    script.produce(1)
    for _ in range(4):
        script.fetch(2)
    script.by("isr", 1)
    assert script.cluster.store.topic.partitions[0].isr == (1, 2)
    assert script.log(2) == script.log(1)


@scripted(Shape(brokers=2))
def test_a_follower_keeps_nothing_of_another_history_below_the_log_start_of_its_leader(script):
    """Broker 2 leads without broker 1, and deletes the record that it has in the place of one of broker 1."""
    script.produce(1)
    script.make("depose", lambda choice: choice[0].id == 1 and choice[1].id == 2, 1)
    script.produce(2)
    script.delete(2)
    script.by("catch_up", 1)
    script.by("start", 1)
    script.by("finish", 1)
    script.by("catch_up", 2)
    for _ in range(5):
        script.fetch(1)
    script.by("isr", 2)
    assert script.cluster.store.topic.partitions[0].isr == (1, 2)
    script.by("crash", 1, how=0)
    script.by("start", 1)
    assert script.log(1) != [(1, 1)]


def drive(script, broker):
    script.make("drive", lambda choice: choice[0].id == broker)


def drive_until_noted(script, broker):
    for _ in range(12):
        if script.cluster.driver.epoch:
            return
        drive(script, broker)
    raise AssertionError(f"the epoch is not decided: {script.told[-5:]}")


@scripted(Shape(brokers=3))
def test_a_driver_that_asks_a_deposed_leader_first_does_not_decide_an_epoch_again(script):
    """Broker 2 leads when the epoch is decided. The next driver asks broker 1 first, which has not heard of that."""
    script.make("depose", lambda choice: choice[0].id == 1 and choice[1].id == 2, 1)
    script.by("catch_up", 3)
    script.by("isr", 2)
    drive_until_noted(script, 2)
    driver = script.cluster.driver
    driver.epoch = 0  # Spark died before it noted that
    drive(script, 1)
    drive_until_noted(script, 2)
    committed = [driver.decided[value] for _, value in script.cluster.safety.seen[0] if value in driver.decided]
    assert committed == [0]


def diverge(script):
    """Broker 3 leads, with a record of broker 1. Broker 2 led in between, and has another record in its place."""
    script.make("produce", lambda choice: choice[0].id == 1, 0)
    script.fetch(3)
    script.make("depose", lambda choice: choice[0].id == 1 and choice[1].id == 2, 1)
    script.make("produce", lambda choice: choice[0].id == 2, 0)
    script.by("crash", 2, 0)
    for kind in ("catch_up", "control", "finish", "catch_up", "control"):
        script.by(kind, 3)
    if script.process(3).running:
        script.by("finish", 3)
    script.by("catch_up", 3)
    assert script.process(3).led
    assert script.log(2)[0] > script.log(3)[0]


def lose_all_power(script):
    for broker in (2, 3):
        script.sync(broker)
    script.make("power", lambda brokers: len(brokers) == 3, 0)
    for broker in (1, 3, 2):
        script.by("start", broker)
        script.by("finish", broker)
    script.cluster.come_to_rest()


@scripted(Shape(brokers=3, min_insync_replicas=1))
def test_a_new_leader_commits_nothing_before_it_has_written_its_isr(script):
    """A power cut of all comes before the write: the record of broker 2, of a later epoch, leads."""
    diverge(script)
    assert script.process(3).led[0].high_watermark == 0
    lose_all_power(script)
    assert script.cluster.store.topic.partitions[0].leader == 2


@scripted(Shape(brokers=3, min_insync_replicas=1))
def test_what_a_new_leader_commits_after_it_has_written_its_isr_outlives_the_epoch_between(script):
    diverge(script)
    script.by("isr", 3)
    script.by("catch_up", 3)
    assert script.process(3).led[0].high_watermark == 1
    lose_all_power(script)
    assert script.cluster.store.topic.partitions[0].leader == 3


def a_replica_that_goes_leaves_the_epoch_as_it_is():
    def same_epoch(partition, target, brokers):
        return begun(partition, target, brokers)._replace(leader_epoch=partition.leader_epoch)

    return patch(f"{__name__}.begun_by_the_rules", same_epoch)


@pytest.mark.parametrize(
    ("plant", "script"),
    [
        (
            planted.who_could_join_when_it_was_looked_at_joins,
            test_a_follower_that_falls_behind_while_the_store_is_asked_does_not_join,
        ),
        (
            planted.a_restarted_leader_goes_on_in_its_epoch,
            test_a_write_of_the_process_before_changes_nothing_behind_the_back_of_the_next,
        ),
        (
            planted.a_broker_goes_on_where_it_ended,
            test_a_leader_that_lost_records_and_is_alone_in_sync_gives_way_to_who_has_more,
        ),
        (
            planted.the_last_one_in_an_isr_stays,
            test_when_all_lose_power_the_last_one_back_does_not_lead_with_what_it_has_left,
        ),
        (
            planted.who_leaves_an_isr_is_forgotten,
            test_when_all_lose_power_one_that_came_back_and_died_again_is_waited_for,
        ),
        (
            planted.a_leader_below_min_insync_forgets_the_others,
            test_one_that_was_left_alone_in_sync_and_loses_power_waits_for_the_others,
        ),
        (
            planted.a_log_of_which_all_is_deleted_reports_no_epoch,
            test_when_all_lose_power_a_log_of_which_all_is_deleted_is_as_long_as_its_end_says,
        ),
        (
            planted.an_empty_log_goes_on_where_it_ends,
            test_a_follower_that_began_anew_past_what_its_leader_lost_has_no_hole,
        ),
        (
            planted.a_driver_reads_decisions_without_a_mark,
            test_a_driver_that_asks_a_deposed_leader_first_does_not_decide_an_epoch_again,
        ),
        (
            planted.a_history_is_compared_from_the_log_start_on,
            test_a_follower_keeps_nothing_of_another_history_below_the_log_start_of_its_leader,
        ),
        (
            planted.a_new_leader_commits_before_it_has_written_its_isr,
            test_a_new_leader_commits_nothing_before_it_has_written_its_isr,
        ),
        (
            a_replica_that_goes_leaves_the_epoch_as_it_is,
            test_a_replica_that_is_taken_away_and_given_back_is_not_taken_for_what_it_was,
        ),
    ],
    ids=lambda one: one.__name__,
)
def test_with_the_bug_back_its_schedule_finds_it(plant, script):
    with plant(), pytest.raises(AssertionError):
        script()


def test_a_script_that_names_a_step_that_cannot_happen_fails():
    @scripted(ALONE)
    def impossible(script):
        script.by("start", 1)

    with pytest.raises((StopIteration, RuntimeError)):
        impossible()


@scripted(Shape(brokers=3))
def test_an_uncommitted_record_of_an_epoch_between_does_not_outlive_what_was_committed_later(script):
    """Records of epoch 1 are committed in epoch 3, by an ISR that then loses power. Broker 2 has one of epoch 2."""
    for _ in range(2):
        script.make("produce", lambda choice: choice[0].id == 1, 0)
    script.fetch(3)
    script.make("depose", lambda choice: choice[0].id == 1 and choice[1].id == 2, 1)
    script.make("produce", lambda choice: choice[0].id == 2, 0)
    script.by("crash", 2, 0)
    for kind in ("catch_up", "control", "finish", "catch_up", "control"):
        script.by(kind, 3)
    if script.process(3).running:
        script.by("finish", 3)
    script.by("start", 1)
    script.by("finish", 1)
    script.by("catch_up", 1)
    script.by("catch_up", 3)
    for _ in range(3):
        script.fetch(1)
    script.by("isr", 3)
    script.by("catch_up", 3)
    script.fetch(1)
    for broker in (1, 3):
        script.sync(broker)
    script.make("power", lambda brokers: brokers == (1, 3), 0)
    for broker in (1, 3, 2):
        script.by("start", broker)
        script.by("finish", broker)
    script.cluster.come_to_rest()
    assert script.cluster.store.topic.partitions[0].leader in (1, 3)
