"""The flags and actions that kafka-consumer-groups and kafka-share-groups have in common."""

import argparse
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from skep.cli import output
from skep.cli.connection import Cluster
from skep.cli.failures import CommandError, UsageError
from skep.cli.groups.group_admin import commit_offsets, delete_groups
from skep.cli.groups.offset_reset import Commit, Scope, apply_plans, check_scope, reset_plans, warn
from skep.cli.groups.reset_plan import Reset, plan_as_csv
from skep.cli.kafka.kafka_flags import KafkaFlags
from skep.cli.kafka.kafka_group_rows import reset_lines

ANY = ""
"""The value of ``--state`` and ``--type`` without a value."""


def add_group_flags(parser: KafkaFlags, actions: Mapping[str, str]) -> None:
    """Adds the actions, with their help texts, and the flags that both commands have."""
    for action, help_text in actions.items():
        parser.add_argument(_flag(action), action="store_true", help=help_text)
    parser.add_argument("--group", action="append", help="the group; repeatable")
    parser.add_argument("--all-groups", action="store_true", help="all groups")
    parser.add_argument("--members", action="store_true", help="with --describe: show members")
    parser.add_argument("--offsets", action="store_true", help="with --describe: show offsets (the default)")
    parser.add_argument(
        "--state", nargs="?", const=ANY, help="with --describe: show the state; with --list: filter by states"
    )
    parser.add_argument("--verbose", action="store_true", help="with --describe: show more columns")
    parser.add_argument(
        "--topic", action="append", metavar="TOPIC[:0,1]", help="a topic or some of its partitions; repeatable"
    )
    parser.add_argument("--all-topics", action="store_true", help="all topics with offsets of the group")
    for target, offset in {
        "earliest": "log start offset",
        "latest": "log end offset",
        "current": "current offset of the group",
    }.items():
        parser.add_argument(f"--to-{target}", action="store_true", help=f"reset to the {offset}")
    parser.add_argument("--to-offset", type=int, metavar="N", help="reset to offset N")
    parser.add_argument("--to-datetime", metavar="YYYY-MM-DDThh:mm:ss.sss", help="reset to a time, UTC by default")
    parser.add_argument("--from-file", metavar="FILE", help="reset to the offsets in a CSV file of --export")
    parser.add_argument("--dry-run", action="store_true", help="only show the new offsets")
    parser.add_argument("--execute", action="store_true", help="set the new offsets")
    parser.add_argument("--export", action="store_true", help="print the offsets as CSV")
    parser.add_argument("--timeout", type=int, default=30_000, metavar="MS", help="request timeout, 30000 by default")


def chosen_action(
    flags: argparse.Namespace, actions: Mapping[str, str], allowed: Mapping[str, Sequence[str]], *more: str
) -> str:
    """Returns the one action. Raises UsageError for several, and for flags that it cannot be used with.

    ``allowed`` has the actions that each flag can be used with, ``more`` actions that the caller handles.
    """
    chosen = [name for name in actions if getattr(flags, name)]
    if len(chosen) != 1:
        raise UsageError(f"Command must include exactly one action: {', '.join(map(_flag, (*actions, *more)))}")
    [action] = chosen
    for name, with_actions in allowed.items():
        given = getattr(flags, name)
        if given is not None and given is not False and action not in with_actions:
            raise UsageError(f"{_flag(name)} cannot be used with {_flag(action)}")
    if action == "delete_offsets" and not (flags.group and len(flags.group) == 1 and flags.topic):
        raise UsageError("--delete-offsets takes one --group and a --topic")
    if action not in ("list", "delete_offsets") and flags.all_groups == bool(flags.group):
        raise UsageError(f"{_flag(action)} takes one of these options: --group, --all-groups")
    if action == "describe" and flags.members + flags.offsets + (flags.state is not None) > 1:
        raise UsageError("--describe takes at most one of these options: --members, --offsets, --state")
    if action == "describe" and flags.state:
        raise UsageError("--describe does not take a value for --state")
    if flags.dry_run and flags.execute:
        raise UsageError("--reset-offsets only accepts one of --execute and --dry-run")
    return action


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def print_lines(lines: Sequence[str]) -> None:
    for line in lines:
        output.line(line)


def delete_and_report(cluster: Cluster, groups: Sequence[str], what: str) -> None:
    """Deletes groups. ``what`` they are, as Kafka's tools write it: ``consumer groups``."""
    errors = delete_groups(cluster, groups)
    deleted = ", ".join(f"'{name}'" for name, error in errors.items() if error is None)
    failures = [
        f"Group '{name}' could not be deleted due to: {error}" for name, error in errors.items() if error is not None
    ]
    if not failures:
        output.line(f"Deletion of requested {what} ({deleted}) was successful.")
        return
    if deleted:
        output.line(f"These {what} were deleted successfully: {deleted}")
    raise CommandError("; ".join(failures))


def reset_and_report(
    cluster: Cluster,
    flags: argparse.Namespace,
    groups: Callable[[], Sequence[str]],
    destination: Reset | Path,
    commit: Commit = commit_offsets,
) -> None:
    """Shows the new offsets, and sets them if asked to."""
    scope = Scope(flags.topic or (), flags.all_topics)
    check_scope(scope, destination)
    plans = reset_plans(cluster, groups(), destination, scope)
    warn(plans)
    if flags.execute:
        apply_plans(cluster, plans, commit)
    if flags.export:
        offsets = {group: {change.where: change.new for change in changes} for group, changes in plans.items()}
        output.write(plan_as_csv(offsets, with_group=len(flags.group or ()) != 1).encode())
    else:
        output.line()
        print_lines(reset_lines(plans))


def utc_moment(text: str) -> int:
    """Returns milliseconds since 1970. A time without a zone is UTC as in Kafka's tools; in ``skep`` it is local."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(f"'{text}' is not a time; expected one like 2024-05-01T12:00:00.000") from None
    return round((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)
