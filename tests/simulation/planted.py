"""Bugs planted on purpose, each a small change of one rule: what does not find them proves nothing.

Each is a context that puts the wrong rule in place of the right one. The walker finds those in ``BUGS``; others take so
rare a schedule that only a script finds them. ``HARMLESS`` are changes that the simulation does not find, because
another rule covers for them; why is said with each.
"""

import contextlib
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

from skep.broker.cluster.membership import Membership, _without
from skep.broker.fetch.follower_fetch import FollowerFetch
from skep.controller.elections import _reports
from skep.controller.reassignment import finished
from skep.metadata.catalog import Catalog
from skep.metadata.model import BrokerRecord, PartitionRecord
from skep.replication.isr_updater import IsrUpdater
from skep.replication.partition.in_sync_replicas import Follower, InSyncReplicas
from skep.replication.partition.partition import Partition
from skep.storage.log.leader_epochs import LeaderEpochs
from tests.simulation.driver import Driver
from tests.simulation.model_log import ModelLog
from tests.simulation.process import Process


def the_high_watermark_ignores_the_proposed_isr():
    def propose(self, isr):
        self._proposed = frozenset(isr)

    return patch.object(InSyncReplicas, "propose", propose)


def a_fetch_counts_before_its_history_is_compared():
    right = FollowerFetch.read

    def read(self, partition, one, left, records_of, *, at_least_one):
        partition.follower_fetched(self.broker_id, one.fetch_offset, self.broker_epoch)
        return right(self, partition, one, left, records_of, at_least_one=at_least_one)

    return patch.object(FollowerFetch, "read", read)


def a_follower_joins_before_it_has_the_leaders_epoch():
    right = InSyncReplicas.__init__

    def init(self, node_id, record, epoch_start_offset, now):
        right(self, node_id, record, 0, now)

    return patch.object(InSyncReplicas, "__init__", init)


def histories_are_not_compared():
    return patch.object(Partition, "diverging", lambda self, offset, last_fetched_epoch: None)


def a_deposed_leader_may_change_the_isr():
    return patch.object(IsrUpdater, "_is_ours", lambda self, record, partition: True)


def a_broker_out_of_sync_is_elected():
    return patch("skep.controller.controller.is_unclean", lambda topic, default: True)


def a_broker_that_lost_records_stays_in_sync():
    return patch("skep.broker.cluster.membership._without", lambda partition, broker_id: None)


def the_last_one_in_an_isr_stays():
    """The rule before logs were compared: whoever is back last leads, with whatever it has left."""

    def without(partition, broker_id):
        if broker_id in partition.replicas and partition.isr == (broker_id,):
            return partition.elected(partition.leader, partition.isr)
        return _without(partition, broker_id)

    return patch("skep.broker.cluster.membership._without", without)


def who_leaves_an_isr_is_forgotten():
    def with_isr(self, isr):
        return self._replace(isr=tuple(isr), last_isr=() if isr else self.awaited)

    return patch.object(PartitionRecord, "with_isr", with_isr)


def a_leader_below_min_insync_forgets_the_others():
    right = IsrUpdater._with_change

    def with_change(self, partition, record, change):
        return right(self, partition, record, change)._replace(last_isr=())

    return patch.object(IsrUpdater, "_with_change", with_change)


def a_new_leader_commits_before_it_has_written_its_isr():
    """Then records of an earlier epoch count, and a batch of an epoch between wins against them after a power cut."""

    def advance(self):
        if self.is_leader:
            log, in_sync = self.log, self.in_sync
            end = log.flushed_offset if log.config.syncs_before_acknowledging else log.log_end_offset
            self._move_high_watermark(end if in_sync is None else in_sync.committed_end(end))

    return patch.object(Partition, "_advance", advance)


def a_driver_reads_decisions_without_a_mark():
    """The rule before: the newest decision is what is found up to the end of the log of whoever claims to lead."""
    return patch.object(Driver, "_must_mark", lambda self: False)


def the_first_one_back_leads():
    return patch("skep.controller.elections.missing", lambda partition, brokers: not _reports(partition, brokers))


def the_log_that_ends_last_leads_whatever_its_epoch():
    return patch("skep.controller.elections._length", lambda report: (report.log_end_offset, report.last_epoch))


def a_report_of_an_earlier_process_counts():
    def without(partition, broker_id):
        return partition if partition.is_undecided else _without(partition, broker_id)

    def reports(partition, brokers):
        return {report.broker: report for report in partition.reports if report.broker in brokers.live}

    return _both(
        patch("skep.broker.cluster.membership._without", without), patch("skep.controller.elections._reports", reports)
    )


@contextlib.contextmanager
def _both(first, second):
    with first, second:
        yield


def a_broker_registers_before_it_leaves_the_isrs():
    async def start(self):
        await self.membership.join(BrokerRecord(self.id, f"host{self.id}", 1))
        await self.membership.prepare_restart(self.replicas.may_have_lost)
        self.disk.losses_settled()
        self.serve()

    return patch.object(Process, "start", start)


def a_restarted_leader_goes_on_in_its_epoch():
    return patch("skep.broker.cluster.membership._leads", lambda partition, broker_id: False)


def a_broker_goes_on_where_it_ended():
    async def prepare_restart(self, has_lost):
        return

    return patch.object(Membership, "prepare_restart", prepare_restart)


def who_could_join_when_it_was_looked_at_joins():
    right = IsrUpdater._with_change

    def with_change(self, partition, record, change):
        with patch.object(InSyncReplicas, "may_be_added", lambda *_: True):
            return right(self, partition, record, change)

    return patch.object(IsrUpdater, "_with_change", with_change)


def an_image_that_comes_settles_the_proposal():
    right = InSyncReplicas.follow

    def follow(self, record, now):
        self._proposed = None
        right(self, record, now)

    return patch.object(InSyncReplicas, "follow", follow)


def a_write_without_an_answer_is_taken_for_lost():
    right = Catalog.change_topic

    def change_topic(self, name, change, *, always_write=False):
        return right(self, name, change)

    return patch.object(Catalog, "change_topic", change_topic)


def the_high_watermark_does_not_wait_for_the_slowest():
    def committed_end(self, own_end):
        ends = sorted([own_end, *(follower.log_end_offset for follower in self._members)])
        return ends[len(ends) // 2]

    return patch.object(InSyncReplicas, "committed_end", committed_end)


def a_move_ends_before_the_new_replicas_are_in_sync():
    def finished_early(partition, brokers):
        return finished(partition._replace(isr=tuple({*partition.isr, *partition.adding})), brokers)

    return patch("skep.controller.decisions.finished", finished_early)


class _AnyEpoch:
    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other):
        return True


def the_registration_of_a_joining_follower_is_not_asked_for():
    right = Follower.fetched

    def fetched(self, offset, leader_end, now, broker_epoch):
        right(self, offset, leader_end, now, _AnyEpoch())

    return patch.object(Follower, "fetched", fetched)


def a_log_of_which_all_is_deleted_reports_no_epoch():
    """Then any log with a batch counts as longer."""

    right = ModelLog.last_batch_epoch

    def last_batch_epoch(self):
        return -1 if self.log_start_offset == self.log_end_offset else right.fget(self)

    return patch.object(ModelLog, "last_batch_epoch", property(last_batch_epoch))


def the_epoch_of_the_last_deleted_record_is_forgotten():
    """A member of the ISR whose log is empty then throws it away where its leader still has the deleted records."""
    return patch.object(LeaderEpochs, "truncate_before", LeaderEpochs._truncate_start)


def a_history_is_compared_from_the_log_start_on():
    """Then a record that was never committed stays in a follower, where its leader has deleted another one."""
    return patch.object(ModelLog, "divergence", ModelLog.end_offset_for_epoch)


def an_empty_log_goes_on_where_it_ends():
    """Though its leader has records before that, and nobody deleted these."""
    return patch("skep.replication.follower.followed_partition._may_start_late", lambda log: False)


Plant = Callable[[], "contextlib.AbstractContextManager[Any]"]

BUGS: tuple[Plant, ...] = (
    the_high_watermark_ignores_the_proposed_isr,
    a_fetch_counts_before_its_history_is_compared,
    a_follower_joins_before_it_has_the_leaders_epoch,
    histories_are_not_compared,
    a_deposed_leader_may_change_the_isr,
    a_broker_out_of_sync_is_elected,
    a_broker_that_lost_records_stays_in_sync,
    who_could_join_when_it_was_looked_at_joins,
    a_write_without_an_answer_is_taken_for_lost,
    a_move_ends_before_the_new_replicas_are_in_sync,
    the_high_watermark_does_not_wait_for_the_slowest,
    a_new_leader_commits_before_it_has_written_its_isr,
    a_driver_reads_decisions_without_a_mark,
    the_last_one_in_an_isr_stays,
    the_first_one_back_leads,
    a_log_of_which_all_is_deleted_reports_no_epoch,
)

# A restart without loss keeps what was fetched, so what the leader knew still holds. A restart with loss makes a new
# leader epoch, in the ISR or not: the leader's write, decided on the fetches of before, finds another epoch. So what
# KIP-903 asks for is a second lock on the same door; it also keeps a broker that is away from joining.
#
# A record of the topic that comes while a write of ours is on its way is either that write or a later version than the
# one that it asks for, and then it fails. What is told again without having changed is left to unit tests.
#
# One that was elected before it left the ISR leaves it then, and those with whom it was in sync before are waited for.
#
# A log is synced when it is opened, before it is reported, so the power cuts of the model leave it as it was reported.
# The report of an earlier process is wrong only when the disk was exchanged in between.
#
# A leader commits nothing before the last ISR is its own. Of the logs that are compared after that, one that ends in an
# earlier epoch has lost the rest, or has a tail that keeps the later batches from being committed. So their ends alone
# would do; comparing epochs does not depend on what leaders do.
#
# A member of the ISR does not begin anew, so one that has forgotten its last epoch goes on where its log ends.
HARMLESS: tuple[Plant, ...] = (
    the_registration_of_a_joining_follower_is_not_asked_for,
    an_image_that_comes_settles_the_proposal,
    a_broker_registers_before_it_leaves_the_isrs,
    a_report_of_an_earlier_process_counts,
    the_log_that_ends_last_leads_whatever_its_epoch,
    the_epoch_of_the_last_deleted_record_is_forgotten,
)
