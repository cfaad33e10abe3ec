"""What a broker writes into the record of an undecided partition, and when it writes it again."""

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from uuid import uuid4

import pytest

from skep.base.errors import ErrorCode, KafkaError, StoreUnavailable
from skep.base.ids import BrokerId, LeaderEpoch, TopicPartition
from skep.metadata.model import NEW_DISK, NO_LEADER, BrokerRecord, LogReport, PartitionRecord, TopicRecord
from skep.replication import log_end_reporter
from skep.replication.log_end_reporter import LogEndReporter

ONE, TWO = BrokerId(1), BrokerId(2)
TOPIC_ID = uuid4()
TURNS = 100
LED = PartitionRecord((ONE, TWO), (ONE, TWO), ONE, LeaderEpoch(6))
UNDECIDED = PartitionRecord((ONE, TWO), (), NO_LEADER, LeaderEpoch(7), last_isr=(ONE, TWO))


class Scene:
    """Broker 1, a store, and one partition for each record."""

    def __init__(self, *records):
        self.topic = TopicRecord("t", TOPIC_ID, records)
        self.node = BrokerRecord(ONE, "h", 1, epoch=40)
        self.image = SimpleNamespace(brokers={ONE: self.node}, topics={"t": self.topic})
        self.failures = []
        self.partitions = [Replica(index, record.leader_epoch) for index, record in enumerate(records)]
        self.reports = LogEndReporter(lambda: self.node, self)
        for one, record in zip(self.partitions, records, strict=True):
            self.reports.role_changed(one, record)

    async def change_topic(self, name, change):
        if self.failures:
            raise self.failures.pop()
        self.topic = self.image.topics["t"] = change(self.topic)

    async def report(self):
        """Whatever is due now; False when nothing is.

        In turns of the loop, of which a report takes a few: with a limit of time, a process that does not run for a
        moment would have reported nothing.
        """
        reporting = asyncio.ensure_future(self.reports.report())
        for _ in range(TURNS):
            await asyncio.sleep(0)
        if reporting.done():
            await reporting
            return True
        reporting.cancel()
        await asyncio.gather(reporting, return_exceptions=True)
        return False

    @property
    def written(self):
        return [record.reports for record in self.topic.partitions]


class Replica:
    """As much of a ``Partition`` as is asked for."""

    topic_id = TOPIC_ID
    log = SimpleNamespace(last_batch_epoch=5, log_end_offset=100)

    def __init__(self, index, leader_epoch):
        self.topic_partition = TopicPartition("t", index)
        self.leader_epoch = leader_epoch


def run(scenario):
    asyncio.run(asyncio.wait_for(scenario(), 60))


def test_an_undecided_partition_is_reported_and_one_that_is_led_is_not():
    async def scenario():
        scene = Scene(UNDECIDED, LED)
        assert await scene.report()
        assert scene.written == [(LogReport(ONE, 40, 5, 100),), ()]

    run(scenario)


def test_a_partition_that_waits_for_one_in_sync_is_reported_while_that_one_is_away():
    async def scenario():
        waiting = LED._replace(isr=(TWO,), leader=NO_LEADER)
        scene = Scene(waiting)
        assert await scene.report()
        assert scene.written == [(LogReport(ONE, 40, 5, 100),)]
        scene = Scene(waiting)
        scene.image.brokers[TWO] = BrokerRecord(TWO, "h", 2)
        await scene.report()
        assert scene.written == [()], "it is about to lead"

    run(scenario)


def test_what_others_have_reported_stays_and_ours_is_replaced_after_another_registration():
    async def scenario():
        other = LogReport(TWO, 41, 5, 90)
        scene = Scene(UNDECIDED._replace(reports=(other,)))
        await scene.report()
        assert not await scene.report(), "it has been said"
        scene.node = replace(scene.node, epoch=42)
        scene.reports.recheck()
        await scene.report()
        assert scene.written == [(other, LogReport(ONE, 42, 5, 100))]

    run(scenario)


def test_a_partition_is_reported_when_the_last_one_in_sync_has_gone_from_the_image():
    async def scenario():
        scene = Scene(LED._replace(isr=(TWO,), leader=NO_LEADER))
        scene.image.brokers[TWO] = BrokerRecord(TWO, "h", 2)
        await scene.report()
        assert scene.written == [()]
        del scene.image.brokers[TWO]
        scene.reports.recheck()
        await scene.report()
        assert scene.written == [(LogReport(ONE, 40, 5, 100),)]

    run(scenario)


def test_a_new_disk_that_has_nothing_is_said_again_and_one_that_has_something_is_not_new():
    async def scenario():
        new_disk = LogReport(ONE, -1, NEW_DISK, 0)
        scene = Scene(UNDECIDED._replace(reports=(new_disk,)), UNDECIDED._replace(reports=(new_disk,)))
        scene.partitions[0].log = SimpleNamespace(last_batch_epoch=-1, log_end_offset=0)
        await scene.report()
        assert scene.written == [(LogReport(ONE, 40, NEW_DISK, 0),), (LogReport(ONE, 40, 5, 100),)]

    run(scenario)


def test_of_very_many_partitions_the_first_are_reported_and_the_next_when_these_are_decided(monkeypatch):
    async def scenario():
        monkeypatch.setattr(log_end_reporter, "MAX_REPORTED", 2)
        scene = Scene(UNDECIDED, LED, UNDECIDED, UNDECIDED)
        await scene.report()
        assert [len(reports) for reports in scene.written] == [1, 0, 1, 0]
        decided = UNDECIDED.elected(ONE, (ONE,))
        scene.topic = scene.image.topics["t"] = replace(scene.topic, partitions=(decided, *scene.topic.partitions[1:]))
        scene.reports.role_changed(scene.partitions[0], decided)
        await scene.report()
        assert [len(reports) for reports in scene.written] == [0, 0, 1, 1]

    run(scenario)


def test_nothing_is_reported_of_an_epoch_that_we_have_not_heard_of():
    async def scenario():
        scene = Scene(UNDECIDED)
        scene.topic = replace(scene.topic, partitions=(UNDECIDED._replace(leader_epoch=LeaderEpoch(8)),))
        await scene.report()
        assert scene.written == [()]

    run(scenario)


def test_a_partition_that_is_decided_or_gone_is_not_reported_any_more():
    async def scenario():
        scene = Scene(UNDECIDED, UNDECIDED)
        scene.reports.role_changed(scene.partitions[0], LED)
        scene.reports.role_changed(scene.partitions[1], None)
        await scene.report()
        assert scene.written == [(), ()]

    run(scenario)


@pytest.mark.parametrize("is_gone", [True, False])
def test_it_is_tried_again_unless_the_topic_is_gone(monkeypatch, is_gone):
    async def scenario():
        monkeypatch.setattr(log_end_reporter, "RETRY_PAUSE_S", 0)
        scene = Scene(UNDECIDED)
        gone = KafkaError(ErrorCode.unknown_topic_or_partition, "no such topic")
        scene.failures = [gone if is_gone else StoreUnavailable("away")]
        await scene.report()
        assert scene.written == [()]
        assert await scene.report() is not is_gone

    run(scenario)
