"""Offsets of groups: committed, read, deleted, expired, and what transactions do with them."""

import itertools

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from skep.base.config.broker_config import BrokerConfig, read_broker_config
from skep.base.config.current_config import CurrentConfig
from skep.base.errors import ErrorCode, KafkaError
from skep.coordination.group_records import OffsetCommitKey, decode_group_record
from skep.coordination.groups import offset_scan
from skep.coordination.groups.group_memory import MemoryShare
from skep.coordination.groups.group_shard import GroupShard
from skep.coordination.groups.offsets import offset_expiry, offset_operations
from skep.coordination.groups.offsets.deleted_topics import delete_offsets_of
from skep.coordination.groups.offsets.offset_operations import Committer, WantedOffset
from skep.coordination.shard import CoordinatorRecord, Freshness, ProducerStamp
from skep.metadata.cluster_image import ClusterImage
from tests.unit.coordination.driver import ShardDriver

NOBODY = Committer("", None, -1)
DAY_MS = 86_400_000


class FakeGroup:
    """A group of another kind than offsets know; says what the test tells it."""

    type_name, state_name, protocol_type = "classic", "Stable", "consumer"

    def __init__(self, group_id: str = "g") -> None:
        self.group_id = group_id
        self.memory = MemoryShare()
        self.is_empty = False
        self.commits_offsets = True
        self.subscribed: set[str] | None = {"t"}
        self.commits: list[str] = []
        self.empty_since = 0
        self.refusal: KafkaError | None = None

    def check_offset_commit(self, member_id, group_instance_id, generation_or_epoch, *, is_transactional, version):
        if self.refusal is not None:
            raise self.refusal

    def check_offset_fetch(self, member_id, member_epoch):
        if self.refusal is not None:
            raise self.refusal

    def committed(self, member_id):
        self.commits.append(member_id)

    def is_subscribed_to(self, topic):
        return topic in self.subscribed

    def can_read_subscriptions(self):
        return self.subscribed is not None

    def offsets_expire_since(self, commit_timestamp):
        return self.empty_since if self.is_empty else commit_timestamp

    def waiters(self):
        return []

    def tombstones(self):
        return []


class Scene(ShardDriver):
    def __init__(self, **options: str) -> None:
        self.config = CurrentConfig(read_broker_config(options))
        super().__init__(
            lambda context: GroupShard(context, self.config, lambda: ClusterImage.of("test")),
            decode_group_record,
        )

    def commit(self, offset, topic="t", partition=0, group="g", committer=NOBODY, metadata=""):
        wanted = [WantedOffset(topic, partition, offset, 1, metadata)]
        return self.submit(lambda shard: offset_operations.commit(shard, group, committer, wanted, 9))

    def commit_in(self, producer, offset, topic="t", partition=0, group="g"):
        wanted = [WantedOffset(topic, partition, offset, 1, "")]
        return self.submit(
            lambda shard: offset_operations.commit_transactional(shard, group, NOBODY, producer, wanted, 3)
        )

    def fetch(self, topic="t", partition=0, group="g", require_stable=False):
        fetched = self.submit(
            lambda shard: offset_operations.fetch(
                shard, group, None, -1, [(topic, partition)], require_stable=require_stable
            )
        )
        return fetched.offset(topic, partition)

    def everything(self, group="g"):
        fetched = self.submit(lambda shard: offset_operations.fetch(shard, group, None, -1, None, require_stable=False))
        return {place: committed.offset for place, committed in fetched.committed.items()}

    def delete(self, *partitions, group="g"):
        return self.submit(lambda shard: offset_operations.delete(shard, group, partitions))

    def join(self, group: FakeGroup) -> FakeGroup:
        self.shard.groups[group.group_id] = group
        return group


def refusal(work):
    with pytest.raises(KafkaError) as refused:
        work()
    return refused.value.code


def test_what_is_committed_is_read_with_its_metadata_also_after_a_restart():
    scene = Scene()
    assert scene.commit(5, metadata="été") == [ErrorCode.none]
    assert scene.fetch() == (5, 1, "été", ErrorCode.none)
    scene.restart()
    assert scene.fetch() == (5, 1, "été", ErrorCode.none)
    assert scene.everything() == {("t", 0): 5}


def test_what_was_never_committed_is_minus_one_also_in_a_group_that_nobody_knows():
    scene = Scene()
    assert scene.fetch(group="unheard of") == (-1, -1, "", ErrorCode.none)
    scene.commit(5)
    assert scene.fetch(partition=1).offset == -1


def test_a_text_that_is_too_long_is_refused_for_its_partition_alone():
    scene = Scene(**{"offset.metadata.max.bytes": "4"})
    wanted = [
        WantedOffset("t", 0, 1, -1, "éé"),
        WantedOffset("t", 1, 1, -1, "ééé"),
        WantedOffset("t", 2, 1, -1, "12345"),
    ]
    codes = scene.submit(lambda shard: offset_operations.commit(shard, "g", NOBODY, wanted, 9))
    assert codes == [ErrorCode.none, ErrorCode.offset_metadata_too_large, ErrorCode.offset_metadata_too_large]
    assert scene.everything() == {("t", 0): 1}


def test_a_generation_without_a_group_is_refused():
    scene = Scene()
    member = Committer("m", None, 3)
    wanted = [WantedOffset("t", 0, 1, -1, "")]
    for version, code in ((8, ErrorCode.illegal_generation), (9, ErrorCode.group_id_not_found)):
        commit = lambda shard, v=version: offset_operations.commit(shard, "g", member, wanted, v)  # noqa: E731
        assert refusal(lambda commit=commit: scene.submit(commit)) is code
    in_transaction = lambda shard: offset_operations.commit_transactional(  # noqa: E731
        shard, "g", member, ProducerStamp(1, 0), wanted, 4
    )
    assert refusal(lambda: scene.submit(in_transaction)) is ErrorCode.illegal_generation
    assert scene.log == []


def test_a_producer_of_older_versions_is_told_of_an_old_epoch_by_the_code_that_it_knows():
    scene = Scene()
    scene.join(FakeGroup()).refusal = KafkaError(ErrorCode.stale_member_epoch)
    assert refusal(lambda: scene.commit_in(ProducerStamp(1, 0), 5)) is ErrorCode.illegal_generation
    assert refusal(lambda: scene.commit(5)) is ErrorCode.stale_member_epoch


def test_what_the_group_says_of_who_commits_or_reads_holds():
    scene = Scene()
    group = scene.join(FakeGroup())
    scene.commit(1, committer=Committer("m", None, 3))
    assert group.commits == ["m"]
    group.refusal = KafkaError(ErrorCode.fenced_instance_id)
    assert refusal(lambda: scene.commit(2, committer=Committer("m", "i", 3))) is ErrorCode.fenced_instance_id
    assert refusal(scene.fetch) is ErrorCode.fenced_instance_id
    assert group.commits == ["m"]


def test_a_new_group_is_refused_when_there_are_too_many_and_an_old_one_is_not():
    scene = Scene(**{"skep.max.groups": "2"})
    scene.commit(1, group="a")
    scene.join(FakeGroup("b"))
    scene.commit(1, group="b")
    assert refusal(lambda: scene.commit(1, group="c")) is ErrorCode.policy_violation
    assert scene.commit(2, group="a") == [ErrorCode.none]


def test_offsets_of_a_transaction_count_when_it_commits_and_never_when_it_aborts():
    scene = Scene()
    first, second = ProducerStamp(1, 0), ProducerStamp(2, 0)
    scene.commit_in(first, 10)
    scene.commit_in(second, 20, partition=1)
    assert scene.fetch().offset == -1
    assert scene.fetch(require_stable=True).code is ErrorCode.unstable_offset_commit
    scene.restart()
    assert scene.fetch(require_stable=True).code is ErrorCode.unstable_offset_commit
    scene.end_transaction(first, is_committed=True)
    scene.end_transaction(second, is_committed=False)
    for _ in range(2):
        assert scene.fetch(require_stable=True).offset == 10
        assert scene.fetch(partition=1, require_stable=True) == (-1, -1, "", ErrorCode.none)
        scene.restart()


def test_of_a_plain_commit_and_a_transaction_the_later_record_wins():
    scene = Scene()
    producer = ProducerStamp(1, 0)
    scene.commit_in(producer, 10)
    scene.commit(11)
    scene.end_transaction(producer, is_committed=True)
    assert scene.fetch().offset == 11


def test_a_scan_names_a_partition_once_also_if_a_transaction_has_an_offset_for_it():
    scene = Scene()
    scene.commit(1)
    scene.commit_in(ProducerStamp(1, 0), 2)
    scene.commit_in(ProducerStamp(2, 0), 3, partition=1)
    scene.commit_in(ProducerStamp(2, 0), 4, group="h")
    scene.join(FakeGroup("h"))
    scene.join(FakeGroup("i"))
    found = {
        piece.group_id: sorted(piece.places)
        for piece in offset_scan.scan_offsets(scene.shard.groups, scene.shard.offsets)
    }
    assert found == {"g": [("t", 0), ("t", 1)], "h": [("t", 0)], "i": []}
    assert len(list(offset_scan.scan_offsets(scene.shard.groups, scene.shard.offsets))) == 3


def test_deleting_offsets():
    scene = Scene()
    assert refusal(lambda: scene.delete(("t", 0))) is ErrorCode.group_id_not_found
    scene.commit(5)
    scene.commit(6, topic="u")
    group = scene.join(FakeGroup())
    assert scene.delete(("t", 0), ("u", 0), ("u", 9)) == [
        ErrorCode.group_subscribed_to_topic,
        ErrorCode.none,
        ErrorCode.none,
    ]
    assert scene.everything() == {("t", 0): 5}
    group.subscribed = None
    assert refusal(lambda: scene.delete(("t", 0))) is ErrorCode.non_empty_group
    group.is_empty = True
    assert scene.delete(("t", 0)) == [ErrorCode.none]
    assert scene.everything() == {}


def test_deleting_a_group_takes_its_offsets_those_of_transactions_included():
    scene = Scene()
    delete = lambda shard: offset_operations.delete_group(shard, "g")  # noqa: E731
    assert refusal(lambda: scene.submit(delete)) is ErrorCode.group_id_not_found
    producer = ProducerStamp(1, 0)
    scene.commit(5)
    scene.commit_in(producer, 6, partition=1)
    group = scene.join(FakeGroup())
    assert refusal(lambda: scene.submit(delete)) is ErrorCode.non_empty_group
    group.is_empty = True
    scene.submit(delete)
    scene.end_transaction(producer, is_committed=True)
    assert scene.everything() == {}
    scene.restart()
    assert not scene.shard.offsets.has_offsets("g")


def test_offsets_of_deleted_topics_are_forgotten():
    scene = Scene()
    scene.commit(5)
    scene.commit(6, topic="u", group="h")
    producer = ProducerStamp(1, 0)
    scene.commit_in(producer, 7, topic="u")
    scene.commit_in(producer, 8, topic="u", group="only in a transaction")
    delete_offsets_of(scene.shard, frozenset(["u"]))
    scene.pass_ms(1)
    scene.end_transaction(producer, is_committed=True)
    assert scene.everything() == {("t", 0): 5}
    assert scene.shard.offsets.groups() == ["g"]


def test_offsets_of_deleted_topics_are_forgotten_when_it_could_not_be_written_at_first():
    scene = Scene()
    for partition in range(1500):
        scene.commit(5, partition=partition)
    scene.refuse_writes = KafkaError(ErrorCode.coordinator_not_available)
    delete_offsets_of(scene.shard, frozenset(["t"]))
    scene.pass_ms(100)
    assert len(scene.everything()) == 1500
    scene.refuse_writes = None
    scene.pass_ms(1000)
    assert scene.everything() == {}
    scene.commit(6)
    scene.pass_ms(1000)
    assert scene.everything() == {("t", 0): 6}


def test_offsets_expire_when_nobody_has_used_them_for_the_retention():
    scene = Scene(**{"offsets.retention.minutes": str(24 * 60)})
    scene.commit(5)
    scene.pass_ms(DAY_MS // 2)
    scene.commit(6, partition=1)
    scene.pass_ms(DAY_MS // 2 + 600_000)
    assert scene.everything() == {("t", 1): 6}
    scene.pass_ms(DAY_MS)
    assert scene.everything() == {}


def test_what_members_are_subscribed_to_does_not_expire_and_the_rest_does():
    scene = Scene(**{"offsets.retention.minutes": str(24 * 60)})
    group = scene.join(FakeGroup())
    scene.commit(5)
    scene.commit(6, topic="u")
    scene.pass_ms(2 * DAY_MS)
    assert scene.everything() == {("t", 0): 5}
    group.is_empty, group.empty_since = True, scene.clock.now_ms()
    scene.pass_ms(DAY_MS - 700_000)
    assert scene.everything() == {("t", 0): 5}
    scene.pass_ms(2_000_000)
    assert scene.everything() == {}


def test_an_offset_that_a_transaction_is_about_to_replace_does_not_expire():
    scene = Scene(**{"offsets.retention.minutes": str(24 * 60)})
    producer = ProducerStamp(1, 0)
    scene.commit(5)
    scene.commit_in(producer, 6)
    scene.pass_ms(2 * DAY_MS)
    assert scene.everything() == {("t", 0): 5}
    scene.end_transaction(producer, is_committed=True)
    assert scene.everything() == {("t", 0): 6}


def test_very_many_offsets_expire_in_several_writes():
    scene = Scene(**{"offsets.retention.minutes": str(24 * 60)})
    for group in range(2500):
        scene.commit(1, group=f"g{group}")
    scene.pass_ms(DAY_MS + 600_000 + 10)
    assert len(scene.shard.offsets) == 0


def most_records(operations, scene):
    """Carries out what is due, and what that schedules for now; how many operations, and records in one of them."""
    sizes = []
    for operation in operations:
        before = len(scene.log)
        scene.submit(operation)
        sizes.append(len(scene.log) - before)
    return len(sizes), max(sizes)


def test_a_group_of_very_many_offsets_expires_and_is_forgotten_a_thousand_at_a_time():
    scene = Scene(**{"offsets.retention.minutes": str(24 * 60)})
    group = scene.join(FakeGroup())
    group.is_empty, group.tombstones = True, lambda: [CoordinatorRecord(OffsetCommitKey("g", "last", 0), None)]
    for start in range(0, 5_000, 1_000):
        wanted = [WantedOffset("t", partition, 1, 1, "") for partition in range(start, start + 1_000)]
        scene.submit(lambda shard, wanted=wanted: offset_operations.commit(shard, "g", NOBODY, wanted, 9))
    scene.clock.advance_ms(DAY_MS)
    scene.timers.schedule("now", 0, offset_expiry.expire)
    count, most = most_records(scene.timers.take_due(), scene)
    assert scene.everything() == {}
    # The group's own record comes with the last of them; then one operation finds that there is nothing more.
    assert (count, most) == (6, 1_001)
    assert scene.log[-1][0] == OffsetCommitKey("g", "last", 0).encode()


def test_expiry_begins_anew_when_something_could_not_be_written():
    scene = Scene(**{"offsets.retention.minutes": str(24 * 60)})
    for start in range(0, 3_000, 1_000):
        wanted = [WantedOffset("t", partition, 1, 1, "") for partition in range(start, start + 1_000)]
        scene.submit(lambda shard, wanted=wanted: offset_operations.commit(shard, "g", NOBODY, wanted, 9))
    scene.clock.advance_ms(DAY_MS)
    scene.submit(offset_expiry.expire)
    scene.refuse_writes = KafkaError(ErrorCode.coordinator_not_available)
    scene.pass_ms(0)
    assert len(scene.everything()) == 2_000
    scene.refuse_writes = None
    scene.pass_ms(1_000)
    assert scene.everything() == {}


def test_a_topic_that_goes_while_another_is_forgotten_is_forgotten_too():
    scene = Scene()
    for start in range(0, 3_000, 1_000):
        for topic in "tu":
            wanted = [WantedOffset(topic, partition, 1, 1, "") for partition in range(start, start + 1_000)]
            scene.submit(lambda shard, wanted=wanted: offset_operations.commit(shard, "g", NOBODY, wanted, 9))
    delete_offsets_of(scene.shard, frozenset(["t"]))
    scene.submit(next(scene.timers.take_due()))
    delete_offsets_of(scene.shard, frozenset(["u"]))
    count, most = most_records(scene.timers.take_due(), scene)
    assert most <= 1_000
    assert count > 6
    assert scene.everything() == {}
    assert not scene.shard.deleted_topics


def test_what_takes_memory_is_counted_and_given_back():
    scene = Scene()
    scene.commit(1, metadata="x" * 100)
    used = scene.shard.memory.bytes
    assert used > 100
    scene.commit(2, metadata="x" * 50)
    assert scene.shard.memory.bytes == used - 50
    producer = ProducerStamp(1, 0)
    scene.commit_in(producer, 3)
    scene.commit_in(producer, 4, partition=1)
    scene.end_transaction(producer, is_committed=True)
    assert scene.shard.memory.bytes == scene.replayed().memory.bytes
    scene.submit(lambda shard: offset_operations.delete_group(shard, "g"))
    assert scene.shard.memory.bytes == 0


def test_a_new_group_is_refused_when_groups_take_all_their_memory_and_an_old_one_is_not():
    scene = Scene()
    scene.commit(1)
    scene.config.value = read_broker_config({"skep.max.groups.memory.bytes": str(scene.shard.memory.bytes)})
    assert refusal(lambda: scene.commit(1, group="h")) is ErrorCode.policy_violation
    assert scene.commit(1, partition=1) == [ErrorCode.policy_violation]
    assert scene.commit(2) == [ErrorCode.none]


class OffsetsMachine(RuleBasedStateMachine):
    """Commits, transactions, deletions and restarts beside a plain dictionary."""

    def __init__(self):
        super().__init__()
        self.scene = Scene()
        self.model: dict[tuple[str, int], tuple[int, int]] = {}
        self.open: dict[int, dict[tuple[str, int], tuple[int, int]]] = {}
        self.order = itertools.count()

    places = st.tuples(st.sampled_from("gh"), st.integers(0, 2))
    producers = st.integers(1, 3)

    @rule(place=places, offset=st.integers(0, 100))
    def commit(self, place, offset):
        self.scene.commit(offset, group=place[0], partition=place[1])
        self.model[place] = (next(self.order), offset)

    @rule(place=places, offset=st.integers(0, 100), producer=producers)
    def commit_in_transaction(self, place, offset, producer):
        self.scene.commit_in(ProducerStamp(producer, 0), offset, group=place[0], partition=place[1])
        self.open.setdefault(producer, {})[place] = (next(self.order), offset)

    @rule(producer=producers, is_committed=st.booleans())
    def end(self, producer, is_committed):
        self.scene.end_transaction(ProducerStamp(producer, 0), is_committed=is_committed)
        for place, entry in self.open.pop(producer, {}).items():
            if is_committed:
                self.model[place] = max(entry, self.model.get(place, (-1, -1)))

    @rule(place=places)
    def delete(self, place):
        if self.scene.shard.offsets.has_offsets(place[0]):
            had = place in self.model
            self.scene.delete(("t", place[1]), group=place[0])
            if had:
                del self.model[place]
                for offsets in self.open.values():
                    offsets.pop(place, None)

    @rule()
    def restart(self):
        self.scene.restart()

    @invariant()
    def every_offset_is_the_last_one_that_counts(self):
        for group in "gh":
            expected = {("t", place[1]): offset for place, (_, offset) in self.model.items() if place[0] == group}
            assert self.scene.everything(group) == expected


TestOffsets = OffsetsMachine.TestCase
TestOffsets.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)


def test_stable_offsets_are_proven_and_others_are_read_under_the_lease():
    config = CurrentConfig(BrokerConfig())
    driver = ShardDriver(
        lambda context: GroupShard(context, config, lambda: ClusterImage("c")),
        decode_group_record,
    )
    driver.submit(lambda shard: offset_operations.commit(shard, "g", NOBODY, [WantedOffset("t", 0, 5, -1, "")], 9))

    def freshness(require_stable: bool) -> Freshness:
        return offset_operations.fetch(driver.shard, "g", None, -1, None, require_stable=require_stable).freshness

    assert [freshness(True), freshness(False)] == [Freshness.PROVEN, Freshness.LEASED]
    key, value = driver.shard.no_change
    assert value is None
    driver.shard.replay(9, *decode_group_record(key.encode(), None), None)
    assert driver.shard.offsets.groups() == ["g"]
