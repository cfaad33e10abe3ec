"""The operations on offsets: commit by members, in transactions and without a group; fetch; delete.

A group without members may have offsets (consumers that use ``assign`` and ``commit``, tools that reset offsets). It
exists as long as it has any, and is listed as a classic group without a protocol.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from skep.base.errors import ErrorCode, KafkaError
from skep.coordination.group_records import OffsetCommitKey, OffsetCommitValue
from skep.coordination.groups.committed_offsets import CommittedOffset, Place
from skep.coordination.groups.group import Group
from skep.coordination.groups.group_memory import OFFSET_BYTES
from skep.coordination.groups.group_table import GroupTable
from skep.coordination.shard import CoordinatorRecord, Freshness, Outcome, ProducerStamp

NO_OFFSET = -1
OFFSETS_AT_ONCE = 1_000
"""Offsets committed or deleted by one operation: some 5 ms. A larger request is like several requests in a row."""
PICKED_OFFSETS = 1_000
"""Offsets fetched one by one. For more it is faster to copy all offsets of the group."""
HAS_GROUP_ID_NOT_FOUND = 9
"""The first version of OffsetCommit with this code; before, it is ILLEGAL_GENERATION."""
_NO_EPOCH = -1


class Committer(NamedTuple):
    """The member that commits. A generation below 0 means that the client is not a member."""

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
"""A WantedOffset, or a plain tuple of the same: commits are the most frequent requests to a coordinator."""


Codes = list[ErrorCode]
"""A code for each offset, in the order of the request."""


def commit(
    table: GroupTable, group_id: str, committer: Committer, offsets: Sequence[AnyOffset], version: int
) -> Outcome:
    """OffsetCommit. The response is a code per offset."""
    group = table.groups.get(group_id)
    _check_committer(table, group, group_id, committer, version, is_transactional=False)
    outcome = _commit(table, group_id, offsets)
    if group is not None and committer.member_id:
        outcome.then = lambda: group.committed(committer.member_id)
    return outcome


def commit_transactional(
    table: GroupTable,
    group_id: str,
    committer: Committer,
    producer: ProducerStamp,
    offsets: Sequence[AnyOffset],
    version: int,
) -> Outcome:
    """TxnOffsetCommit: the offsets take effect when the transaction commits. The member is checked too (KIP-447)."""
    try:
        _check_committer(table, table.groups.get(group_id), group_id, committer, version, is_transactional=True)
    except KafkaError as error:
        if error.code is ErrorCode.stale_member_epoch:
            # Clients of the served versions do not know the new code; an older producer would take it for fatal.
            raise KafkaError(ErrorCode.illegal_generation, str(error)) from error
        raise
    outcome = _commit(table, group_id, offsets)
    outcome.producer = producer
    return outcome


def _check_committer(
    table: GroupTable,
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
        reports_missing_group = version >= HAS_GROUP_ID_NOT_FOUND and not is_transactional
        code = ErrorCode.group_id_not_found if reports_missing_group else ErrorCode.illegal_generation
        raise KafkaError(code, f"group {group_id!r} does not exist")
    elif not table.offsets.has_offsets(group_id):
        table.check_room()


def _commit(table: GroupTable, group_id: str, offsets: Sequence[AnyOffset]) -> Outcome:
    now_ms, settings = table.clock.now_ms(), table.config
    max_metadata = settings.offset_metadata_max_bytes
    committed = table.offsets.of_group(group_id)
    room: int | None = None
    codes: Codes = []
    records: list[tuple[OffsetCommitKey, OffsetCommitValue]] = []
    for topic, partition, offset, leader_epoch, metadata in offsets:
        if len(metadata) > max_metadata or (not metadata.isascii() and len(metadata.encode()) > max_metadata):
            codes.append(ErrorCode.offset_metadata_too_large)
            continue
        if (topic, partition) not in committed:
            room = (_room(table, group_id) if room is None else room) - 1
            if room < 0:
                codes.append(ErrorCode.policy_violation)
                continue
        codes.append(ErrorCode.none)
        # Like calls of the classes, without their overhead: commits are the most frequent requests to a coordinator.
        key = tuple.__new__(OffsetCommitKey, (group_id, topic, partition))
        records.append((key, tuple.__new__(OffsetCommitValue, (offset, leader_epoch, metadata, now_ms))))
    return Outcome(codes, records)


def _room(table: GroupTable, group_id: str) -> int:
    """Returns for how many more partitions the group may have offsets."""
    settings, offsets = table.config, table.offsets
    held = len(offsets.of_group(group_id)) + offsets.count_pending(group_id)
    left = settings.max_groups_memory_bytes - table.used_bytes()
    return min(settings.max_group_offsets - held, left // OFFSET_BYTES)


class FetchedOffset(NamedTuple):
    offset: int
    leader_epoch: int
    metadata: str
    code: ErrorCode


_NEVER_COMMITTED = FetchedOffset(NO_OFFSET, _NO_EPOCH, "", ErrorCode.none)
_UNSTABLE = FetchedOffset(NO_OFFSET, _NO_EPOCH, "", ErrorCode.unstable_offset_commit)


class FetchedOffsets(NamedTuple):
    """The offsets of a group at one moment. ``unstable`` are those that an open transaction may commit."""

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
    table: GroupTable,
    group_id: str,
    member_id: str | None,
    member_epoch: int,
    wanted: Collection[Place] | None,
    *,
    require_stable: bool,
) -> Outcome:
    """OffsetFetch. The response is FetchedOffsets with the ``wanted`` offsets, and perhaps more. None: all.

    In a group that does not exist every offset is -1. With ``require_stable`` (KIP-447) a partition whose offset an
    open transaction may commit has UNSTABLE_OFFSET_COMMIT, and the client retries. Such a client continues where an
    earlier producer ended, and with an old offset would write records twice: the response is PROVEN.
    """
    check_fetch(table, group_id, member_id, member_epoch)
    committed = table.offsets.of_group(group_id)
    if wanted is None or len(wanted) > PICKED_OFFSETS:
        committed = table.offsets.snapshot(group_id)
    else:
        committed = {place: committed[place] for place in wanted if place in committed}
    unstable: Collection[Place] = ()
    if require_stable and table.offsets.has_pending(group_id):
        unstable = table.offsets.pending_places(group_id)
    freshness = Freshness.PROVEN if require_stable else Freshness.LEASED
    return Outcome(FetchedOffsets(committed, unstable), freshness=freshness)


def check_fetch(table: GroupTable, group_id: str, member_id: str | None, member_epoch: int) -> None:
    """Raises KafkaError if the client names a member that is not a current one."""
    group = table.groups.get(group_id)
    if group is not None:
        group.check_offset_fetch(member_id, member_epoch)
    elif member_epoch >= 0 and member_id:
        raise KafkaError(ErrorCode.unknown_member_id, f"group {group_id!r} does not exist")


def delete(table: GroupTable, group_id: str, partitions: Sequence[tuple[str, int]]) -> Outcome:
    """OffsetDelete. The response is a code per partition. Raises GROUP_ID_NOT_FOUND if the group does not exist.

    Raises NON_EMPTY_GROUP if the subscriptions of the members cannot be read. Topics that members subscribe to are
    refused.
    """
    group = table.groups.get(group_id)
    if group is None and not table.offsets.has_offsets(group_id):
        raise KafkaError(ErrorCode.group_id_not_found, f"group {group_id!r} does not exist")
    if group is not None and not group.commits_offsets:
        raise KafkaError(ErrorCode.group_id_not_found, f"Group {group_id} is not a consumer group.")
    if group is not None and not group.is_empty and not group.can_read_subscriptions():
        raise KafkaError(ErrorCode.non_empty_group, f"group {group_id!r} has members")
    committed = table.offsets.of_group(group_id)
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


def delete_group(table: GroupTable, group_id: str) -> Outcome:
    """DeleteGroups: deletes the group and its offsets. Raises GROUP_ID_NOT_FOUND or NON_EMPTY_GROUP.

    If the group has more than ``OFFSETS_AT_ONCE`` offsets, only so many are deleted and the response is True: the
    operation has to be repeated for the rest and the group itself.
    """
    group = table.groups.get(group_id)
    if group is None and not table.offsets.has_offsets(group_id):
        raise KafkaError(ErrorCode.group_id_not_found, f"group {group_id!r} does not exist")
    if group is not None and not group.is_empty:
        raise KafkaError(ErrorCode.non_empty_group, f"group {group_id!r} has members")
    places = table.offsets.some_partitions_of_group(group_id, OFFSETS_AT_ONCE + 1)
    records = [
        CoordinatorRecord(OffsetCommitKey(group_id, topic, partition), None)
        for topic, partition in places[:OFFSETS_AT_ONCE]
    ]
    if len(places) > OFFSETS_AT_ONCE:
        return Outcome(True, records)
    return Outcome(False, [*records, *(group.tombstones() if group is not None else ())])
