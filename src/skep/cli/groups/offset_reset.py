"""Resetting the offsets of groups: whom it is allowed for, which partitions it is about, and the plan for them.

``skep groups reset-offsets`` and ``kafka-consumer-groups --reset-offsets`` are both this.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from skep.base.ids import TopicPartition
from skep.cli import output
from skep.cli.connection import Cluster
from skep.cli.failures import CommandError, UsageError
from skep.cli.groups.group_admin import INACTIVE, Committed, commit_offsets, committed_offsets, find_groups
from skep.cli.groups.reset_plan import Change, Marks, Reset, Target, parse_plan, parse_scope, plan
from skep.cli.log_offsets import earliest_offsets, latest_offsets, offsets_at_time, with_leader
from skep.cli.records.topic_reader import partitions_of


@dataclass(frozen=True)
class Scope:
    """Which partitions: ``topics`` like ``orders`` or ``orders:0,2``, or all that the group has committed offsets of.
    With offsets from a file it is empty: the file says which."""

    topics: Sequence[str] = ()
    all_topics: bool = False


def one_destination(values: Mapping[Target, int | None], file: str | Path | None) -> Reset | Path:
    """The one place that was named, or the file that names one for each partition. UsageError unless it is just one."""
    given = [(target, value) for target, value in values.items() if value is not None]
    if len(given) + (file is not None) != 1:
        raise UsageError(
            "say where to, once: --to-earliest, --to-latest, --to-current, --to-offset, --to-datetime, --by-duration, "
            "--shift-by or --from-file"
        )
    return Reset(*given[0]) if file is None else Path(file)


def check_scope(scope: Scope, destination: Reset | Path) -> None:
    if isinstance(destination, Path):
        if scope.topics or scope.all_topics:
            raise UsageError("the file says which partitions: leave --topic and --all-topics away")
    elif scope.all_topics == bool(scope.topics):
        raise UsageError("say which partitions: --topic or --all-topics")


def reset_plans(
    cluster: Cluster, groups: Sequence[str], destination: Reset | Path, scope: Scope
) -> dict[str, list[Change]]:
    """The plan for each group. CommandError when one of them has members: they would commit their own again."""
    resets = _resets_in(destination, groups) if isinstance(destination, Path) else dict.fromkeys(groups, destination)
    for group, view in find_groups(cluster, groups).items():
        if view is not None and view.state not in INACTIVE:
            members = output.count(len(view.members), "active member")
            raise CommandError(
                f"group '{group}' has {members} (state {view.state}): its offsets can be reset when they are gone"
            )
    return {group: _group_plan(cluster, group, reset, scope) for group, reset in resets.items()}


def _resets_in(file: Path, groups: Sequence[str]) -> dict[str, Reset]:
    try:
        offsets = parse_plan(file.read_text(), str(file), groups)
    except OSError as error:
        raise CommandError(f"cannot read {file}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise CommandError(f"{file} is not text") from None
    for group in groups:
        if group not in offsets:
            raise CommandError(f"{file} has no offsets of group '{group}'")
    return {group: Reset(Target.FILE, file=offsets[group]) for group in groups}


def apply_plans(cluster: Cluster, plans: dict[str, list[Change]]) -> None:
    for group, changes in plans.items():
        if changes:
            commit_offsets(cluster, group, {change.where: change.new for change in changes})


def warn(plans: dict[str, list[Change]]) -> None:
    """To stderr: a plan that goes to a file or a program stays a plan."""
    for changes in plans.values():
        for change in changes:
            if change.warning is not None:
                output.note(f"warning: {change.warning}")


def partitions_in(cluster: Cluster, topics: Iterable[str]) -> list[TopicPartition]:
    """The partitions that ``orders`` or ``orders:0,2`` mean; one that is not there is a CommandError."""
    found = set()
    for text in topics:
        topic, partitions = parse_scope(text)
        found |= {TopicPartition(topic, number) for number in partitions_of(cluster, topic, partitions or ())}
    return sorted(found)


def _group_plan(cluster: Cluster, group: str, reset: Reset, scope: Scope) -> list[Change]:
    committed = committed_offsets(cluster, group)
    if scope.all_topics:
        places = sorted(committed)
        if not places:
            output.note(f"Group {group} has no committed offsets.")
    elif reset.target is Target.FILE:
        places = partitions_in(cluster, (f"{topic}:{partition}" for topic, partition in reset.file or ()))
    else:
        places = partitions_in(cluster, scope.topics)
    there = with_leader(cluster, places)
    for missing in set(places) - set(there):
        if not scope.all_topics:
            raise CommandError(f"{missing} has no leader that could be asked for its offsets")
        output.note(f"warning: {missing} is left alone: it is gone, or has no leader")
    return plan(reset, _marks(cluster, there, committed, reset))


def _marks(
    cluster: Cluster, places: list[TopicPartition], committed: dict[TopicPartition, Committed], reset: Reset
) -> dict[TopicPartition, Marks]:
    earliest, latest = earliest_offsets(cluster, places), latest_offsets(cluster, places)
    marks = {
        place: Marks(earliest[place], latest[place], committed[place].offset if place in committed else None)
        for place in places
    }
    if reset.target is Target.TIME:
        at_time = offsets_at_time(cluster, places, reset.value)
        marks = {place: replace(marks[place], at_time=at_time[place]) for place in places}
    return marks
