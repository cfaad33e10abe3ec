"""What is asked of offsets: committing them (by members, in transactions, by anybody), reading and deleting them.

A group that nobody has joined may have offsets all the same (``assign`` and ``commit``, tools that reset): it is there
as long as it has any, and is a classic group without a protocol to those who list it.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from skep.base.errors import ErrorCode, KafkaError
from skep.coordination.group_records import OffsetCommitKey, OffsetCommitValue
from skep.coordination.groups.committed_offsets import CommittedOffset, Place
from skep.coordination.groups.group import Group
from skep.coordination.groups.group_memory import OFFSET_BYTES
from skep.coordination.shard import CoordinatorRecord, Freshness, Outcome, ProducerStamp

if TYPE_CHECKING:
    from skep.coordination.groups.group_shard import GroupShard

NO_OFFSET = -1
OFFSETS_AT_ONCE = 1_000
"""Committed or deleted by one operation: some 5 ms. A request for more is as several requests in a row."""
PICKED_OFFSETS = 1_000
"""Looked up one by one. Where more are wanted, to copy all that the group has is quicker."""
TELLS_THAT_THERE_IS_NO_GROUP = 9
"""The version of OffsetCommit; before it the answer is ILLEGAL_GENERATION."""
_NO_EPOCH = -1


class Committer(NamedTuple):
    """Who commits. A generation below 0 says: not as a member."""

    member_id: str
    group_instance_id: str | None
    generation_or_epoch: int


class WantedOffset(NamedTuple):
    topic: str
    partition: int
    offset: int
    leader_epoch: int
    metadata: str


AnyOffset = tuple[str, int, int, int, str]
"""A WantedOffset, or a plain tuple of the same: commits are what coordinators are asked most."""


Codes = list[ErrorCode]
"""One for each offset, in the order they were given."""


def commit(
    shard: "GroupShard", group_id: str, committer: Committer, offsets: Sequence[AnyOffset], version: int
) -> Outcome:
    """OffsetCommit; the response is a code per offset."""
    group = shard.groups.get(group_id)
    _check_committer(shard, group, group_id, committer, version, is_transactional=False)
    outcome = _commit(shard, group_id, offsets)
    if group is not None and committer.member_id:
        outcome.then = lambda: group.committed(committer.member_id)
    return outcome


def commit_transactional(
    shard: "GroupShard",
    group_id: str,
    committer: Committer,
    producer: ProducerStamp,
    offsets: Sequence[AnyOffset],
    version: int,
) -> Outcome:
    """TxnOffsetCommit: the offsets count when the producer's transaction commits (KIP-447 checks the member, too)."""
    try:
        _check_committer(shard, shard.groups.get(group_id), group_id, committer, version, is_transactional=True)
    except KafkaError as error:
        if error.code is ErrorCode.stale_member_epoch:
            # What the versions that are served know: to an older producer the new code would be a fatal one.
            raise KafkaError(ErrorCode.illegal_generation, str(error)) from error
        raise
    outcome = _commit(shard, group_id, offsets)
    outcome.producer = producer
    return outcome


def _check_committer(
    shard: "GroupShard",
    group: Group | None,
    group_id: str,
    committer: Committer,
    version: int,
    *,
    is_transactional: bool,
) -> None:
    if group is not None:
        group.check_offset_commit(*committer, is_transactional=is_transactional, version=version)
    elif committer.generation_or_epoch >= 0:
        is_told_so = version >= TELLS_THAT_THERE_IS_NO_GROUP and not is_transactional
        code = ErrorCode.group_id_not_found if is_told_so else ErrorCode.illegal_generation
        raise KafkaError(code, f"there is no group {group_id!r}")
    elif not shard.offsets.has_offsets(group_id):
        shard.check_room()


def _commit(shard: "GroupShard", group_id: str, offsets: Sequence[AnyOffset]) -> Outcome:
    now_ms, settings = shard.clock.now_ms(), shard.settings()
    max_metadata = settings.offset_metadata_max_bytes
    committed = shard.offsets.of_group(group_id)
    room: int | None = None
    codes: Codes = []
    records: list[tuple[OffsetCommitKey, OffsetCommitValue]] = []
    for topic, partition, offset, leader_epoch, metadata in offsets:
        if len(metadata) > max_metadata or (not metadata.isascii() and len(metadata.encode()) > max_metadata):
            codes.append(ErrorCode.offset_metadata_too_large)
            continue
        if (topic, partition) not in committed:
            room = (_room(shard, group_id) if room is None else room) - 1
            if room < 0:
                codes.append(ErrorCode.policy_violation)
                continue
        codes.append(ErrorCode.none)
        # What calls of the classes do, without their checks: commits are what coordinators are asked most.
        key = tuple.__new__(OffsetCommitKey, (group_id, topic, partition))
        records.append((key, tuple.__new__(OffsetCommitValue, (offset, leader_epoch, metadata, now_ms))))
    return Outcome(codes, records)


def _room(shard: "GroupShard", group_id: str) -> int:
    """For how many more partitions the group may have offsets."""
    settings, offsets = shard.settings(), shard.offsets
    held = len(offsets.of_group(group_id)) + offsets.count_pending(group_id)
    left = settings.max_groups_memory_bytes - shard.used_bytes()
    return min(settings.max_group_offsets - held, left // OFFSET_BYTES)


class FetchedOffset(NamedTuple):
    offset: int
    leader_epoch: int
    metadata: str
    code: ErrorCode


_NEVER_COMMITTED = FetchedOffset(NO_OFFSET, _NO_EPOCH, "", ErrorCode.none)
_UNSTABLE = FetchedOffset(NO_OFFSET, _NO_EPOCH, "", ErrorCode.unstable_offset_commit)


class FetchedOffsets(NamedTuple):
    """The offsets of a group at one moment. ``unstable`` are those that a transaction is about to commit."""

    committed: Mapping[Place, CommittedOffset]
    unstable: Collection[Place]

    def offset(self, topic: str, partition: int) -> FetchedOffset:
        if (topic, partition) in self.unstable:
            return _UNSTABLE
        found = self.committed.get((topic, partition))
        if found is None:
            return _NEVER_COMMITTED
        return FetchedOffset(found.offset, found.leader_epoch, found.metadata, ErrorCode.none)


def fetch(
    shard: "GroupShard",
    group_id: str,
    member_id: str | None,
    member_epoch: int,
    wanted: Collection[Place] | None,
    *,
    require_stable: bool,
) -> Outcome:
    """OffsetFetch; the response is FetchedOffsets with what is ``wanted``, and perhaps more. None: all.

    Of a group that nobody has heard of every offset is -1. With ``require_stable`` (KIP-447) a partition whose offset a
    transaction is about to commit is UNSTABLE_OFFSET_COMMIT: the client asks again. Who asks so begins where an earlier
    producer ended, and would write twice what lies between an old offset and the newest: the answer is proven.
    """
    check_fetch(shard, group_id, member_id, member_epoch)
    committed = shard.offsets.of_group(group_id)
    if wanted is None or len(wanted) > PICKED_OFFSETS:
        committed = shard.offsets.snapshot(group_id)
    else:
        committed = {place: committed[place] for place in wanted if place in committed}
    unstable: Collection[Place] = ()
    if require_stable and shard.offsets.has_pending(group_id):
        unstable = shard.offsets.pending_places(group_id)
    freshness = Freshness.PROVEN if require_stable else Freshness.LEASED
    return Outcome(FetchedOffsets(committed, unstable), freshness=freshness)


def check_fetch(shard: "GroupShard", group_id: str, member_id: str | None, member_epoch: int) -> None:
    """KafkaError when who asks is not a member of now."""
    group = shard.groups.get(group_id)
    if group is not None:
        group.check_offset_fetch(member_id, member_epoch)
    elif member_epoch >= 0 and member_id:
        raise KafkaError(ErrorCode.unknown_member_id, f"there is no group {group_id!r}")


def delete(shard: "GroupShard", group_id: str, partitions: Sequence[tuple[str, int]]) -> Outcome:
    """OffsetDelete; the response is a code per partition. GROUP_ID_NOT_FOUND for a group that is not there.

    A topic that members are subscribed to is refused, and so is everything when that cannot be known.
    """
    group = shard.groups.get(group_id)
    if group is None and not shard.offsets.has_offsets(group_id):
        raise KafkaError(ErrorCode.group_id_not_found, f"there is no group {group_id!r}")
    if group is not None and not group.is_empty and not group.knows_subscriptions():
        raise KafkaError(ErrorCode.non_empty_group, f"the group {group_id!r} has members")
    committed = shard.offsets.of_group(group_id)
    codes: Codes = []
    records = []
    for topic, partition in partitions:
        if group is not None and not group.is_empty and group.is_subscribed_to(topic):
            codes.append(ErrorCode.group_subscribed_to_topic)
            continue
        codes.append(ErrorCode.none)
        if (topic, partition) in committed:
            records.append(CoordinatorRecord(OffsetCommitKey(group_id, topic, partition), None))
    return Outcome(codes, records)


def delete_group(shard: "GroupShard", group_id: str) -> Outcome:
    """DeleteGroups: the group and its offsets. GROUP_ID_NOT_FOUND, or NON_EMPTY_GROUP while it has members.

    Of a group with more than ``OFFSETS_AT_ONCE`` offsets only so many are deleted. The response is whether that is so:
    then the rest, and the group, is to be deleted by the same operation, asked again.
    """
    group = shard.groups.get(group_id)
    if group is None and not shard.offsets.has_offsets(group_id):
        raise KafkaError(ErrorCode.group_id_not_found, f"there is no group {group_id!r}")
    if group is not None and not group.is_empty:
        raise KafkaError(ErrorCode.non_empty_group, f"the group {group_id!r} has members")
    places = shard.offsets.some_partitions_of_group(group_id, OFFSETS_AT_ONCE + 1)
    records = [
        CoordinatorRecord(OffsetCommitKey(group_id, topic, partition), None)
        for topic, partition in places[:OFFSETS_AT_ONCE]
    ]
    if len(places) > OFFSETS_AT_ONCE:
        return Outcome(True, records)
    return Outcome(False, [*records, *(group.tombstones() if group is not None else ())])
