"""The output of kafka-consumer-groups and kafka-share-groups, with Kafka's columns and widths: scripts parse it.

Left out: the epochs of ``--verbose``, which the client library does not return; they are shown as ``-``.
"""

from collections.abc import Iterable, Mapping, Sequence

from skep.base.ids import TopicPartition
from skep.cli.groups.group_lag import LagRow
from skep.cli.groups.group_views import GroupListing, GroupView, MemberView
from skep.cli.groups.reset_plan import Change

MISSING = "-"
_WIDE, _NARROW = 15, 10


def aligned(columns: Sequence[tuple[str, int]], rows: Iterable[Sequence[object]]) -> list[str]:
    """Returns the header and the rows. A column has at least the given width; trailing spaces are removed."""
    texts = [[MISSING if cell is None else str(cell) for cell in row] for row in rows]
    widths = [max([width, *(len(row[index]) for row in texts)]) for index, (_, width) in enumerate(columns)]
    lines = [[heading for heading, _ in columns], *texts]
    return [" ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]


def offset_lines(view: GroupView, rows: Sequence[LagRow], *, verbose: bool) -> list[str]:
    columns = [("GROUP", _WIDE), ("TOPIC", _WIDE), ("PARTITION", _NARROW)]
    columns += [("LEADER-EPOCH", _WIDE)] if verbose else []
    columns += [("CURRENT-OFFSET", _WIDE), ("LOG-END-OFFSET", _WIDE), ("LAG", _WIDE)]
    columns += [("CONSUMER-ID", _WIDE), ("HOST", _WIDE), ("CLIENT-ID", 0)]
    cells = [
        [
            view.group,
            *row.where,
            *([row.leader_epoch] if verbose else []),
            row.current,
            row.log_end,
            row.lag,
            *((row.member.member_id, row.member.host, row.member.client_id) if row.member else (None, None, None)),
        ]
        for row in rows
    ]
    return aligned(columns, cells)


def member_lines(view: GroupView, *, verbose: bool) -> list[str]:
    with_instance = any(member.instance_id for member in view.members)
    columns = [("GROUP", _WIDE), ("CONSUMER-ID", _WIDE)]
    columns += [("GROUP-INSTANCE-ID", 17)] if with_instance else []
    columns += [("HOST", _WIDE), ("CLIENT-ID", _WIDE), ("#PARTITIONS", _WIDE)]
    if verbose:
        columns += [("CURRENT-EPOCH", _WIDE), ("CURRENT-ASSIGNMENT", 20), ("TARGET-EPOCH", _WIDE)]
        columns += [("TARGET-ASSIGNMENT", 20)]
    return aligned(columns, (_member_cells(view.group, m, with_instance, verbose) for m in view.members))


def _member_cells(group: str, member: MemberView, with_instance: bool, verbose: bool) -> list[object]:
    cells: list[object] = [group, member.member_id]
    cells += [member.instance_id or ""] if with_instance else []
    cells += [member.host, member.client_id, len(member.assignment)]
    if verbose:
        cells += [None, assignment_text(member.assignment), None, assignment_text(member.target or [])]
    return cells


def assignment_text(places: Iterable[TopicPartition]) -> str | None:
    """``orders:0,1;payments:2``."""
    by_topic: dict[str, list[str]] = {}
    for topic, partition in sorted(places):
        by_topic.setdefault(topic, []).append(str(partition))
    return ";".join(f"{topic}:{','.join(partitions)}" for topic, partitions in by_topic.items()) or None


def state_lines(view: GroupView, *, verbose: bool) -> list[str]:
    columns = [("GROUP", _WIDE), ("COORDINATOR (ID)", 25), ("ASSIGNMENT-STRATEGY", 20), ("STATE", 20)]
    columns += [("GROUP-EPOCH", _WIDE), ("TARGET-ASSIGNMENT-EPOCH", 25)] if verbose else []
    coordinator = f"{view.coordinator}  ({view.coordinator_id})"
    cells: list[object] = [view.group, coordinator, view.assignor or None, view.state]
    return aligned([*columns, ("#MEMBERS", 0)], [[*cells, *([None, None] if verbose else []), len(view.members)]])


def listing_lines(found: Iterable[GroupListing], *, with_type: bool, with_state: bool) -> list[str]:
    columns = [("GROUP", 25)] + [("TYPE", 20)] * with_type + [("STATE", 20)] * with_state
    return aligned(columns, ([g.group] + [g.type] * with_type + [g.state] * with_state for g in found))


def reset_lines(plans: Mapping[str, Sequence[Change]]) -> list[str]:
    columns = [("GROUP", _WIDE), ("TOPIC", _WIDE), ("PARTITION", _NARROW), ("NEW-OFFSET", 0)]
    return aligned(
        columns, ((group, *change.where, change.new) for group, changes in plans.items() for change in changes)
    )


def deletion_lines(errors: Mapping[TopicPartition, str | None]) -> list[str]:
    columns = [("TOPIC", _WIDE), ("PARTITION", _NARROW), ("STATUS", _WIDE)]
    return aligned(
        columns,
        ((*place, "Successful" if error is None else f"Error: {error}") for place, error in sorted(errors.items())),
    )


# Share groups.


def share_offset_lines(view: GroupView, rows: Sequence[LagRow], *, verbose: bool) -> list[str]:
    columns = [("GROUP", _WIDE), ("TOPIC", _WIDE), ("PARTITION", _NARROW)]
    columns += [("LEADER-EPOCH", 13)] if verbose else []
    columns += [("START-OFFSET", 13), ("LAG", 0)]
    cells = (
        [view.group, *row.where, *([row.leader_epoch] if verbose else []), row.current, row.unfinished] for row in rows
    )
    return aligned(columns, cells)


def share_member_lines(view: GroupView, *, verbose: bool) -> list[str]:
    columns = [("GROUP", _WIDE), ("CONSUMER-ID", _WIDE), ("HOST", _WIDE), ("CLIENT-ID", _WIDE), ("#PARTITIONS", 12)]
    columns += [("MEMBER-EPOCH", 13)] if verbose else []
    cells = (
        [
            *(view.group, member.member_id, member.host, member.client_id, len(member.assignment)),
            *([member.epoch] if verbose else []),
            assignment_text(member.assignment) or "",
        ]
        for member in sorted(view.members, key=lambda member: member.member_id)
    )
    return aligned([*columns, ("ASSIGNMENT", 0)], cells)


def share_state_lines(view: GroupView, *, verbose: bool) -> list[str]:
    columns = [("GROUP", _WIDE), ("COORDINATOR (ID)", 25), ("STATE", _WIDE)]
    columns += [("GROUP-EPOCH", 12), ("ASSIGNMENT-EPOCH", 17)] if verbose else []
    cells = [view.group, f"{view.coordinator}  ({view.coordinator_id})", view.state]
    epochs = [view.group_epoch, view.assignment_epoch] if verbose else []
    return aligned([*columns, ("#MEMBERS", 0)], [[*cells, *epochs, len(view.members)]])


def share_deletion_lines(errors: Mapping[str, str | None]) -> list[str]:
    cells = ((topic, "Successful" if error is None else f"Error: {error}") for topic, error in sorted(errors.items()))
    return aligned([("TOPIC", _WIDE), ("STATUS", 0)], cells)
