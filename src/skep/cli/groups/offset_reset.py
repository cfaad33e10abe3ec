"""Resetting the committed offsets of groups: ``skep groups reset-offsets``.

``kafka-consumer-groups --reset-offsets`` has flags and output of its own and uses the functions below the command.
The plan is printed first; it is committed only with ``--execute``.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import typer

from skep.base.clock import SystemClock
from skep.base.ids import TopicPartition
from skep.cli import output
from skep.cli.connection import DEFAULT_BOOTSTRAP, Bootstrap, Cluster, Properties, cluster_of
from skep.cli.failures import CommandError, UsageError
from skep.cli.groups.group_admin import INACTIVE, Committed, commit_offsets, committed_offsets, find_groups
from skep.cli.groups.reset_plan import Change, Marks, Reset, Target, parse_plan, plan
from skep.cli.log_offsets import earliest_offsets, latest_offsets, offsets_at_time, with_leader
from skep.cli.moments import parse_duration_ms, parse_moment
from skep.cli.output import Json
from skep.cli.partition_selection import selected_partitions

Commit = Callable[[Cluster, str, Mapping[TopicPartition, int]], None]
"""Sets the offsets of a group."""


@dataclass(frozen=True)
class Scope:
    """The partitions to reset: ``topics`` like ``orders`` or ``orders:0,2``, or all that the group has committed.

    Both are empty when the offsets come from a file: the file names the partitions.
    """

    topics: Sequence[str] = ()
    all_topics: bool = False


def reset_offsets(
    group: Annotated[str, typer.Argument(metavar="GROUP")],
    topic: Annotated[
        list[str] | None,
        typer.Option("--topic", "-t", metavar="TOPIC[:PARTITION,...]", help="Partitions to reset. Repeatable."),
    ] = None,
    all_topics: Annotated[
        bool, typer.Option("--all-topics", help="Reset every partition that the group has committed.")
    ] = False,
    to_earliest: Annotated[bool, typer.Option("--to-earliest", help="To the log start offset.")] = False,
    to_latest: Annotated[bool, typer.Option("--to-latest", help="To the log end offset.")] = False,
    to_current: Annotated[
        bool, typer.Option("--to-current", help="To the committed offset, or the log end offset if there is none.")
    ] = False,
    to_offset: Annotated[int | None, typer.Option("--to-offset", min=0, metavar="N", help="To offset N.")] = None,
    to_datetime: Annotated[
        str | None,
        typer.Option(
            metavar="TIME", help="To the first record at or after TIME: 2024-05-01T12:00:00Z, or -1h30m (ago)."
        ),
    ] = None,
    by_duration: Annotated[
        str | None, typer.Option(metavar="DURATION", help="To the first record of the last 1h30m (or PT1H30M).")
    ] = None,
    shift_by: Annotated[
        int | None, typer.Option("--shift-by", metavar="N", help="N offsets forward; -10 is ten offsets back.")
    ] = None,
    from_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="To the offsets in a CSV file of skep groups export.")
    ] = None,
    execute: Annotated[
        bool, typer.Option("--execute", help="Commit the new offsets. The default only shows them.")
    ] = False,
    json: Json = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    properties: Properties = None,
) -> None:
    """Reset the committed offsets of a group.

    Without --execute nothing changes: the command shows the current and the new offsets. The group must have no active
    members. An offset outside the log is replaced by the nearest offset inside it, with a warning. The offsets of a
    share group are those where it starts.

    \b
    Examples:
      skep groups reset-offsets billing --topic orders --to-earliest
      skep groups reset-offsets billing --topic orders:0,2 --shift-by -100 --execute
      skep groups reset-offsets billing --all-topics --to-datetime 2024-05-01T12:00:00Z --execute
      skep groups reset-offsets billing --from-file billing.csv --execute
    """
    scope = Scope(topic or (), all_topics)
    destination = one_destination(
        {
            Target.EARLIEST: 0 if to_earliest else None,
            Target.LATEST: 0 if to_latest else None,
            Target.CURRENT: 0 if to_current else None,
            Target.OFFSET: to_offset,
            Target.SHIFT: shift_by,
            Target.TIME: _moment(to_datetime, by_duration),
        },
        from_file,
    )
    check_scope(scope, destination)
    cluster = cluster_of(bootstrap, properties)
    plans = reset_plans(cluster, [group], destination, scope)
    warn(plans)
    if execute:
        apply_plans(cluster, plans)
    _show(group, plans[group], execute, json)


def _moment(to_datetime: str | None, by_duration: str | None) -> int | None:
    if to_datetime is not None and by_duration is not None:
        raise UsageError("--to-datetime and --by-duration cannot be used together")
    if by_duration is not None:
        return SystemClock().now_ms() - parse_duration_ms(by_duration)
    return None if to_datetime is None else parse_moment(to_datetime, SystemClock())


def _show(group: str, changes: list[Change], execute: bool, json: bool) -> None:
    if json:
        rows = [{**change.where._asdict(), "old": change.old, "new": change.new} for change in changes]
        output.document({"group": group, "executed": execute, "offsets": rows})
        return
    if changes:
        output.table(
            ("topic", "partition", "old", "new"),
            ((*change.where, change.old, change.new) for change in changes),
            right=("partition", "old", "new"),
        )
    if execute:
        output.note(f"Reset {output.count(len(changes), 'offset')} of group {group}.")
    else:
        output.note("Nothing was changed; add --execute to reset the offsets.")


def one_destination(values: Mapping[Target, int | None], file: str | Path | None) -> Reset | Path:
    """Returns the destination, or the file with one per partition. Raises UsageError unless exactly one is given."""
    given = [(target, value) for target, value in values.items() if value is not None]
    if len(given) + (file is not None) != 1:
        raise UsageError(
            "give exactly one destination: --to-earliest, --to-latest, --to-current, --to-offset, --to-datetime, "
            "--by-duration, --shift-by or --from-file"
        )
    return Reset(*given[0]) if file is None else Path(file)


def check_scope(scope: Scope, destination: Reset | Path) -> None:
    if isinstance(destination, Path):
        if scope.topics or scope.all_topics:
            raise UsageError("--from-file names the partitions; --topic and --all-topics cannot be used with it")
    elif scope.all_topics == bool(scope.topics):
        raise UsageError("name the partitions to reset with either --topic or --all-topics")


def reset_plans(
    cluster: Cluster, groups: Sequence[str], destination: Reset | Path, scope: Scope
) -> dict[str, list[Change]]:
    """Returns the plan of each group.

    Raises CommandError when a group has active members: they would overwrite the new offsets with their own.
    """
    resets = _resets_in(destination, groups) if isinstance(destination, Path) else dict.fromkeys(groups, destination)
    for group, view in find_groups(cluster, groups).items():
        if view is not None and view.state not in INACTIVE:
            members = output.count(len(view.members), "active member")
            raise CommandError(
                f"group '{group}' has {members} (state {view.state}); stop its consumers before resetting its offsets"
            )
    return {group: _group_plan(cluster, group, reset, scope) for group, reset in resets.items()}


def _resets_in(file: Path, groups: Sequence[str]) -> dict[str, Reset]:
    try:
        offsets = parse_plan(file.read_text(), str(file), groups)
    except OSError as error:
        raise CommandError(f"cannot read {file}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise CommandError(f"cannot read {file}: it is not UTF-8 text") from None
    for group in groups:
        if group not in offsets:
            raise CommandError(f"{file} has no offsets of group '{group}'")
    return {group: Reset(Target.FILE, file=offsets[group]) for group in groups}


def apply_plans(cluster: Cluster, plans: dict[str, list[Change]], commit: Commit = commit_offsets) -> None:
    for group, changes in plans.items():
        if changes:
            commit(cluster, group, {change.where: change.new for change in changes})


def warn(plans: dict[str, list[Change]]) -> None:
    """Prints the warnings of the plans to stderr, so that stdout holds nothing but the plan."""
    for changes in plans.values():
        for change in changes:
            if change.warning is not None:
                output.note(f"warning: {change.warning}")


def _group_plan(cluster: Cluster, group: str, reset: Reset, scope: Scope) -> list[Change]:
    committed = committed_offsets(cluster, group)
    if scope.all_topics:
        partitions = sorted(committed)
        if not partitions:
            output.note(f"Group {group} has no committed offsets.")
    elif reset.target is Target.FILE:
        partitions = selected_partitions(cluster, (f"{topic}:{partition}" for topic, partition in reset.file or ()))
    else:
        partitions = selected_partitions(cluster, scope.topics)
    available = with_leader(cluster, partitions)
    for missing in set(partitions) - set(available):
        if not scope.all_topics:
            raise CommandError(f"{missing} has no leader, so its offsets cannot be read; try again when it has one")
        output.note(f"warning: {missing} is skipped: it does not exist any more or has no leader")
    return plan(reset, _marks(cluster, available, committed, reset))


def _marks(
    cluster: Cluster, partitions: list[TopicPartition], committed: dict[TopicPartition, Committed], reset: Reset
) -> dict[TopicPartition, Marks]:
    earliest, latest = earliest_offsets(cluster, partitions), latest_offsets(cluster, partitions)
    marks = {
        place: Marks(earliest[place], latest[place], committed[place].offset if place in committed else None)
        for place in partitions
    }
    if reset.target is Target.TIME:
        at_time = offsets_at_time(cluster, partitions, reset.value)
        marks = {place: replace(marks[place], at_time=at_time[place]) for place in partitions}
    return marks
