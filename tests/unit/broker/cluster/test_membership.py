"""What a broker does to its own registration and to the ISRs it is in."""

import asyncio
from dataclasses import replace
from uuid import uuid4

import pytest

from skep.base.errors import KafkaError, StartupError, StoreUnavailable, VersionConflict
from skep.base.ids import BrokerId, LeaderEpoch
from skep.broker.cluster import membership
from skep.broker.cluster.membership import Membership
from skep.metadata.cluster_image import ClusterImage
from skep.metadata.model import NEW_DISK, NO_LEADER, BrokerRecord, LogReport, PartitionRecord, TopicRecord

US, OTHER, THIRD = (BrokerId(number) for number in (1, 2, 3))


def partition(replicas, isr=None, leader=None):
    isr = replicas if isr is None else isr
    return PartitionRecord(tuple(replicas), tuple(isr), isr[0] if leader is None else leader, LeaderEpoch(4))


class Catalog:
    """An image that changes as it is told, at once."""

    def __init__(self, *partitions, others=(OTHER,)):
        topic = TopicRecord("t", uuid4(), partitions)
        brokers = [BrokerRecord(broker, "h", 1, epoch=7) for broker in (US, *others)]
        self.image = ClusterImage.of("c", brokers, [topic])
        self.registrations = []
        self.refusals = []
        self.is_taken = False
        self.changes = 0
        self.gone = None
        self.stored = None  # where the store has something else than the image
        self.loads = asyncio.Queue()
        self.loads.put_nowait(None)
        self._callbacks = []

    def on_change(self, callback):
        self._callbacks.append(callback)

    def become(self, image):
        old, self.image = self.image, image
        for callback in self._callbacks:
            callback(old, image)

    async def change_topic(self, name, change):
        if name not in self.image.topics or name == self.gone:
            raise KafkaError(None, "gone")
        changed = change(self.stored or self.image.topics[name])
        self.changes += 1
        self.become(self.image.with_topic(changed))
        return changed

    async def wait_until_free(self, broker, *, patience_s):
        if self.is_taken:
            raise StartupError("broker 1 is already running")

    async def register_broker(self, broker, *, patience_s):
        if self.refusals:
            raise self.refusals.pop(0)
        registered = replace(broker, epoch=10 + len(self.registrations))
        self.registrations.append(registered)
        return registered

    async def reload(self):
        if (failure := await self.loads.get()) is not None:
            raise failure

    async def update_registration(self, broker):
        if self.refusals:
            raise self.refusals.pop(0)
        self.become(self.image.with_broker(broker))


class Store:
    def __init__(self):
        self.ends = asyncio.Queue()

    async def wait_session_end(self):
        await self.ends.get()


def run(scenario):
    asyncio.run(asyncio.wait_for(scenario(), 60))


@pytest.mark.parametrize(
    ("before", "leader", "isr", "epochs"),
    [
        (partition([US, OTHER]), NO_LEADER, (OTHER,), 1),
        (partition([OTHER, US]), OTHER, (OTHER,), 1),
        (partition([OTHER, US], isr=[OTHER]), OTHER, (OTHER,), 1),
        (partition([US, OTHER], isr=[US]), NO_LEADER, (), 1),
        (partition([US, OTHER], isr=[US], leader=NO_LEADER), NO_LEADER, (), 1),
        (partition([US, OTHER], isr=[], leader=NO_LEADER), NO_LEADER, (), 0),
        (partition([US]), US, (US,), 0),
        (partition([OTHER, THIRD]), OTHER, (OTHER, THIRD), 0),
    ],
)
def test_a_broker_that_lost_records_leaves_isrs_and_every_such_partition_gets_a_new_epoch(before, leader, isr, epochs):
    async def scenario():
        catalog = Catalog(before)
        member = Membership(Store(), catalog, US, 0)
        await member.prepare_restart(lambda topic, index: True)
        after = catalog.image.topics["t"].partitions[0]
        assert (after.leader, after.isr, after.leader_epoch) == (leader, isr, 4 + epochs)

    run(scenario)


def test_who_may_have_lost_records_is_remembered_and_takes_back_what_it_said_of_its_log():
    async def scenario():
        reports = (LogReport(US, 5, 2, 100), LogReport(OTHER, 6, 2, 90))
        undecided = partition([US, OTHER], isr=[], leader=NO_LEADER)._replace(last_isr=(US, OTHER), reports=reports)
        catalog = Catalog(partition([US, OTHER]), undecided)
        await Membership(Store(), catalog, US, 0).prepare_restart(lambda topic, index: True)
        left, still_undecided = catalog.image.topics["t"].partitions
        assert (left.isr, left.last_isr) == ((OTHER,), (US, OTHER))
        assert (still_undecided.last_isr, still_undecided.reports) == ((US, OTHER), reports[1:])

    run(scenario)


def test_a_new_disk_is_noted_where_nobody_leads_and_outlives_the_process():
    async def scenario():
        catalog = Catalog(partition([US, OTHER], isr=[US]), partition([OTHER, US]))
        await Membership(Store(), catalog, US, 0).prepare_restart(lambda topic, index: True, has_new_disk=True)
        alone, led = catalog.image.topics["t"].partitions
        assert alone.reports == (LogReport(US, -1, NEW_DISK, 0),)
        assert led.reports == ()
        # Killed and started again before anybody was elected: now the disk has an identity.
        await Membership(Store(), catalog, US, 0).prepare_restart(lambda topic, index: True)
        assert catalog.image.topics["t"].partitions[0].reports == alone.reports
        # And the other one leaves the ISR too, without having had a new disk.
        catalog = Catalog(partition([US, OTHER, THIRD], isr=[US, OTHER]))
        await Membership(Store(), catalog, US, 0).prepare_restart(lambda topic, index: True, has_new_disk=True)
        await Membership(Store(), catalog, OTHER, 0).prepare_restart(lambda topic, index: True)
        undecided = catalog.image.topics["t"].partitions[0]
        assert (undecided.leader, undecided.isr) == (NO_LEADER, ())
        assert [(one.broker, one.last_epoch) for one in undecided.reports] == [(US, NEW_DISK)]

    run(scenario)


def test_only_the_partitions_that_lost_records_are_left():
    async def scenario():
        catalog = Catalog(partition([OTHER, US]), partition([OTHER, US]))
        await Membership(Store(), catalog, US, 0).prepare_restart(lambda topic, index: index == 1)
        assert [one.isr for one in catalog.image.topics["t"].partitions] == [(OTHER, US), (OTHER,)]

    run(scenario)


@pytest.mark.parametrize(
    ("before", "epochs"),
    [
        (partition([US, OTHER]), 1),
        (partition([US, OTHER], isr=[US]), 1),
        (partition([US]), 0),
        (partition([OTHER, US]), 0),
        (partition([US, OTHER], leader=NO_LEADER), 0),
        (partition([OTHER, THIRD]), 0),
    ],
)
def test_a_broker_that_lost_nothing_goes_on_leading_what_it_led_in_a_new_epoch(before, epochs):
    async def scenario():
        catalog = Catalog(before)
        await Membership(Store(), catalog, US, 0).prepare_restart(lambda topic, index: False)
        (after,) = catalog.image.topics["t"].partitions
        assert after == before._replace(leader_epoch=4 + epochs)
        assert catalog.changes == epochs, "where there is nothing to change nothing is written"

    run(scenario)


def test_all_that_a_broker_changes_of_a_topic_when_it_begins_is_one_change():
    async def scenario():
        catalog = Catalog(partition([US, OTHER]), partition([OTHER, US]), partition([US, OTHER]), partition([US]))
        await Membership(Store(), catalog, US, 0).prepare_restart(lambda topic, index: index in (1, 2))
        after = catalog.image.topics["t"].partitions
        assert [(one.leader, one.isr, one.leader_epoch) for one in after] == [
            (US, (US, OTHER), 5),
            (OTHER, (OTHER,), 5),
            (NO_LEADER, (OTHER,), 5),
            (US, (US,), 4),
        ]
        assert catalog.changes == 1

    run(scenario)


def test_what_a_broker_led_is_decided_by_the_store_and_not_by_what_it_knew_of_it():
    async def scenario():
        catalog = Catalog(partition([US, OTHER]))
        stored = catalog.image.topics["t"]
        # While we started another has been elected; our image has not heard of it.
        catalog.stored = replace(stored, partitions=(stored.partitions[0].elected(OTHER, (OTHER,)),))
        await Membership(Store(), catalog, US, 0).prepare_restart(lambda topic, index: False)
        (after,) = catalog.image.topics["t"].partitions
        assert (after.leader, after.isr, after.leader_epoch) == (OTHER, (OTHER,), 5)

    run(scenario)


def test_a_topic_that_goes_while_a_broker_begins_is_in_nobodys_way():
    async def scenario():
        catalog = Catalog(partition([US, OTHER]))
        another = TopicRecord("u", uuid4(), (partition([US, OTHER]),))
        catalog.become(catalog.image.with_topic(another))
        catalog.gone = "t"
        await Membership(Store(), catalog, US, 0).prepare_restart(lambda topic, index: False)
        assert catalog.image.topics["u"].partitions[0].leader_epoch == 5

    run(scenario)


def test_a_session_that_ends_is_followed_by_a_new_registration(monkeypatch):
    monkeypatch.setattr(membership, "RETRY_PAUSE_S", 0)

    async def scenario():
        store, catalog = Store(), Catalog(partition([US, OTHER]))
        member = Membership(store, catalog, US, 0)
        await member.join(BrokerRecord(US, "h", 1))
        ended, joined = [], asyncio.Queue()
        staying = asyncio.ensure_future(member.stay(lambda: ended.append(1), joined.put_nowait))
        catalog.refusals = [StoreUnavailable("away"), VersionConflict("broker-epochs")]
        store.ends.put_nowait(None)
        node = await joined.get()
        assert ended == [1]
        assert node.epoch == 11
        assert member.node == node
        staying.cancel()

    run(scenario)


def test_a_new_registration_counts_when_the_image_was_read_anew(monkeypatch):
    monkeypatch.setattr(membership, "RETRY_PAUSE_S", 0)

    async def scenario():
        store, catalog = Store(), Catalog(partition([US, OTHER]))
        member = Membership(store, catalog, US, 0)
        before = await member.join(BrokerRecord(US, "h", 1))
        catalog.loads.get_nowait()
        joined = asyncio.Queue()
        staying = asyncio.ensure_future(member.stay(lambda: None, joined.put_nowait))
        store.ends.put_nowait(None)
        catalog.loads.put_nowait(StoreUnavailable("away"))
        while not (catalog.loads.empty() and len(catalog.registrations) == 2):
            await asyncio.sleep(0)
        for _ in range(10):
            await asyncio.sleep(0)
        assert member.node == before, "the lease is renewed for this one, which the store does not have any more"
        catalog.loads.put_nowait(None)
        assert (await joined.get()).epoch == member.node.epoch == 11
        assert len(catalog.registrations) == 2, "one registration, however often it is read"
        staying.cancel()

    run(scenario)


def test_a_broker_whose_id_was_taken_over_meanwhile_gives_up():
    async def scenario():
        store, catalog = Store(), Catalog(partition([US, OTHER]))
        member = Membership(store, catalog, US, 0)
        catalog.refusals = [StartupError("broker 1 is already running")]
        store.ends.put_nowait(None)
        with pytest.raises(StartupError):
            await member.stay(lambda: None, lambda node: None)

    run(scenario)


def test_a_controlled_shutdown_waits_until_others_lead():
    async def scenario():
        catalog = Catalog(partition([US, OTHER]), partition([US]))
        member = Membership(Store(), catalog, US, 0)
        member.node = catalog.image.brokers[US]
        leaving = asyncio.ensure_future(member.hand_over(5))
        await asyncio.sleep(0)
        assert catalog.image.brokers[US].stopping
        assert not leaving.done()
        topic = catalog.image.topics["t"]
        moved = topic.partitions[0].elected(OTHER, (OTHER,))
        catalog.become(catalog.image.with_topic(replace(topic, partitions=(moved, topic.partitions[1]))))
        await leaving  # the other partition nobody else has

    run(scenario)


def test_a_controlled_shutdown_does_not_wait_for_a_store_that_refuses():
    async def scenario():
        for refusal in (StoreUnavailable("away"), VersionConflict("gone")):
            catalog = Catalog(partition([US, OTHER]))
            catalog.refusals = [refusal]
            await Membership(Store(), catalog, US, 0).hand_over(5)

    run(scenario)


def test_a_broker_that_cannot_write_gives_its_leaderships_away_and_takes_them_again():
    async def scenario():
        catalog = Catalog(partition([US, OTHER]))
        member = Membership(Store(), catalog, US, 0)
        member.node = catalog.image.brokers[US]
        await member.set_eligible(False)
        assert catalog.image.brokers[US].stopping
        await member.set_eligible(True)
        assert not catalog.image.brokers[US].stopping

    run(scenario)


def test_whether_a_broker_is_chosen_is_said_again_until_the_store_has_it():
    async def scenario():
        for refusal in (StoreUnavailable("away"), VersionConflict("gone")):
            catalog = Catalog(partition([US, OTHER]))
            member = Membership(Store(), catalog, US, 0)
            member.node = catalog.image.brokers[US]
            catalog.refusals = [refusal]
            await member.set_eligible(False)
            assert not catalog.image.brokers[US].stopping
            await member.set_eligible(False)
            assert catalog.image.brokers[US].stopping
            assert member.node.stopping

    run(scenario)


def test_a_change_that_took_place_without_an_answer_can_be_taken_back():
    async def scenario():
        catalog = Catalog(partition([US, OTHER]))
        member = Membership(Store(), catalog, US, 0)
        member.node = catalog.image.brokers[US]
        catalog.become(catalog.image.with_broker(replace(member.node, stopping=True)))  # we were never told
        await member.set_eligible(True)
        assert not catalog.image.brokers[US].stopping

    run(scenario)


def test_a_broker_that_is_not_registered_or_is_leaving_says_nothing_of_being_chosen():
    async def scenario():
        catalog = Catalog(partition([OTHER, US]))
        member = Membership(Store(), catalog, THIRD, 0)
        await member.set_eligible(False)
        assert THIRD not in catalog.image.brokers
        leaving = Membership(Store(), catalog, US, 0)
        leaving.node = catalog.image.brokers[US]
        await leaving.hand_over(5)
        await leaving.set_eligible(True)
        assert catalog.image.brokers[US].stopping

    run(scenario)


def test_a_broker_alone_goes_on_whatever_its_disk_says():
    async def scenario():
        catalog = Catalog(partition([US]), others=())
        member = Membership(Store(), catalog, US, 0)
        member.node = catalog.image.brokers[US]
        await member.set_eligible(False)
        assert not catalog.image.brokers[US].stopping

    run(scenario)


def test_a_second_broker_of_an_id_changes_nothing_before_it_is_refused():
    async def scenario():
        catalog = Catalog(partition([US, OTHER]))
        catalog.is_taken = True
        before = catalog.image
        with pytest.raises(StartupError):
            await Membership(Store(), catalog, US, 0).prepare_restart(lambda topic, index: True)
        assert catalog.image is before

    run(scenario)
