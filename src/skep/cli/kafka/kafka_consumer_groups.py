"""``kafka-consumer-groups`` with Kafka's flags: list, describe and delete groups, reset and delete their offsets."""

import argparse
import sys
from collections.abc import Sequence
from datetime import UTC, datetime

from skep.base.clock import SystemClock
from skep.cli import output
from skep.cli.connection import Cluster
from skep.cli.failures import CommandError, UsageError, run
from skep.cli.groups.group_admin import (
    INACTIVE,
    GroupView,
    delete_groups,
    delete_offsets,
    describe_groups,
    list_groups,
)
from skep.cli.groups.group_lag import lag_rows
from skep.cli.groups.offset_reset import Scope, apply_plans, check_scope, one_destination, reset_plans, warn
from skep.cli.groups.reset_plan import Target, plan_as_csv
from skep.cli.kafka.kafka_flags import KafkaFlags, cluster_from
from skep.cli.kafka.kafka_group_rows import (
    deletion_lines,
    listing_lines,
    member_lines,
    offset_lines,
    reset_lines,
    state_lines,
)
from skep.cli.moments import parse_duration_ms

EXAMPLES = """\
  kafka-consumer-groups --bootstrap-server localhost:9092 --list
  kafka-consumer-groups --bootstrap-server localhost:9092 --describe --group billing
  kafka-consumer-groups --bootstrap-server localhost:9092 --group billing --reset-offsets --topic orders \\
      --to-earliest --execute
"""
ACTIONS = {
    "list": "list all consumer groups",
    "describe": "describe groups and show their lag",
    "delete": "delete groups and their committed offsets",
    "reset_offsets": "reset the committed offsets of groups; needs --execute to take effect",
    "delete_offsets": "delete the committed offsets of a group for topics",
}
ALLOWED = {
    **dict.fromkeys(("members", "offsets", "verbose"), ("describe",)),
    **dict.fromkeys(("dry_run", "execute", "export", "all_topics", "from_file", "to_offset"), ("reset_offsets",)),
    **dict.fromkeys(("to_datetime", "by_duration", "to_earliest", "to_latest", "to_current"), ("reset_offsets",)),
    "shift_by": ("reset_offsets",),
    "state": ("describe", "list"),
    "type": ("list",),
    "topic": ("reset_offsets", "delete_offsets"),
    "all_groups": ("describe", "delete", "reset_offsets"),
    "group": ("describe", "delete", "reset_offsets", "delete_offsets"),
}
"""The actions that each flag can be used with."""
ANY = ""


def main() -> None:
    sys.exit(run("kafka-consumer-groups", lambda: execute(None)))


def _parser() -> KafkaFlags:
    about = "List, describe, delete and reset the offsets of consumer groups."
    parser = KafkaFlags("kafka-consumer-groups", about, EXAMPLES)
    for action, help_text in ACTIONS.items():
        parser.add_argument(f"--{action.replace('_', '-')}", action="store_true", help=help_text)
    parser.add_argument("--validate-regex", metavar="REGEX", help="check whether a regular expression is valid RE2")
    parser.add_argument("--group", action="append", help="the group; repeatable")
    parser.add_argument("--all-groups", action="store_true", help="all groups")
    parser.add_argument("--members", action="store_true", help="with --describe: show members")
    parser.add_argument("--offsets", action="store_true", help="with --describe: show offsets (the default)")
    parser.add_argument(
        "--state", nargs="?", const=ANY, help="with --describe: show the state; with --list: filter by states"
    )
    parser.add_argument("--type", nargs="?", const=ANY, help="with --list: show types, or filter by types")
    parser.add_argument("--verbose", action="store_true", help="with --describe: show more columns")
    parser.add_argument(
        "--topic", action="append", metavar="TOPIC[:0,1]", help="a topic or some of its partitions; repeatable"
    )
    parser.add_argument("--all-topics", action="store_true", help="all topics with committed offsets of the group")
    for target, offset in {
        "earliest": "log start offset",
        "latest": "log end offset",
        "current": "committed offset",
    }.items():
        parser.add_argument(f"--to-{target}", action="store_true", help=f"reset to the {offset}")
    parser.add_argument("--to-offset", type=int, metavar="N", help="reset to offset N")
    parser.add_argument("--shift-by", type=int, metavar="N", help="shift the offset by N, which may be negative")
    parser.add_argument("--to-datetime", metavar="YYYY-MM-DDThh:mm:ss.sss", help="reset to a time, UTC by default")
    parser.add_argument("--by-duration", metavar="PnDTnHnMnS", help="reset to a time this long ago")
    parser.add_argument("--from-file", metavar="FILE", help="reset to the offsets in a CSV file of --export")
    parser.add_argument("--dry-run", action="store_true", help="only show the new offsets")
    parser.add_argument("--execute", action="store_true", help="commit the new offsets")
    parser.add_argument("--export", action="store_true", help="print the offsets as CSV")
    parser.add_argument("--timeout", type=int, default=30_000, metavar="MS", help="request timeout, 30000 by default")
    return parser


def execute(arguments: list[str] | None) -> None:
    parser = _parser()
    if (regex := parser.parse_args(arguments).validate_regex) is not None:
        _validate(regex)
        return
    flags = parser.parse(arguments)
    action = _action(flags)
    cluster = cluster_from(flags, flags.timeout / 1000)
    {
        "list": _list,
        "describe": _describe,
        "delete": _delete,
        "reset_offsets": _reset_offsets,
        "delete_offsets": _delete_offsets,
    }[action](cluster, flags)


def _action(flags: argparse.Namespace) -> str:
    actions = [name for name in ACTIONS if getattr(flags, name)]
    if len(actions) != 1:
        names = ", ".join(f"--{name.replace('_', '-')}" for name in (*ACTIONS, "validate_regex"))
        raise UsageError(f"Command must include exactly one action: {names}")
    [action] = actions
    for name, allowed in ALLOWED.items():
        given = getattr(flags, name)
        if given is not None and given is not False and action not in allowed:
            raise UsageError(f"--{name.replace('_', '-')} cannot be used with --{action.replace('_', '-')}")
    if action == "delete_offsets" and not (flags.group and len(flags.group) == 1 and flags.topic):
        raise UsageError("--delete-offsets takes one --group and a --topic")
    if action not in ("list", "delete_offsets") and flags.all_groups == bool(flags.group):
        raise UsageError(f"--{action.replace('_', '-')} takes one of these options: --group, --all-groups")
    if action == "describe" and flags.members + flags.offsets + (flags.state is not None) > 1:
        raise UsageError("--describe takes at most one of these options: --members, --offsets, --state")
    if action == "describe" and flags.state:
        raise UsageError("--describe does not take a value for --state")
    if flags.dry_run and flags.execute:
        raise UsageError("--reset-offsets only accepts one of --execute and --dry-run")
    return action


def _groups(cluster: Cluster, flags: argparse.Namespace) -> list[str]:
    if flags.all_groups:
        return [listing.group for listing in list_groups(cluster)]
    return list(dict.fromkeys(flags.group))


def _print(lines: Sequence[str]) -> None:
    for line in lines:
        output.line(line)


def _list(cluster: Cluster, flags: argparse.Namespace) -> None:
    states, types = ([name for name in (given or ANY).split(",") if name] for given in (flags.state, flags.type))
    found = list_groups(cluster, states, types)
    if flags.state is None and flags.type is None:
        _print([listing.group for listing in found])
    else:
        _print(listing_lines(found, with_type=flags.type is not None, with_state=flags.state is not None))


def _describe(cluster: Cluster, flags: argparse.Namespace) -> None:
    for view in describe_groups(cluster, _groups(cluster, flags)):
        _note_state(view)
        output.line()
        if flags.members:
            if view.members:
                _print(member_lines(view, verbose=flags.verbose))
        elif flags.state is not None:
            _print(state_lines(view, verbose=flags.verbose))
        elif rows := lag_rows(cluster, view):
            _print(offset_lines(view, rows, verbose=flags.verbose))


def _note_state(view: GroupView) -> None:
    if view.state in INACTIVE:
        output.note(f"\nConsumer group '{view.group}' has no active members.")
    elif view.state != "Stable":
        output.note(f"\nWarning: Consumer group '{view.group}' is rebalancing.")


def _delete(cluster: Cluster, flags: argparse.Namespace) -> None:
    errors = delete_groups(cluster, _groups(cluster, flags))
    deleted = ", ".join(f"'{name}'" for name, error in errors.items() if error is None)
    failures = [
        f"Group '{name}' could not be deleted due to: {error}" for name, error in errors.items() if error is not None
    ]
    if not failures:
        output.line(f"Deletion of requested consumer groups ({deleted}) was successful.")
        return
    if deleted:
        output.line(f"These consumer groups were deleted successfully: {deleted}")
    raise CommandError("; ".join(failures))


def _reset_offsets(cluster: Cluster, flags: argparse.Namespace) -> None:
    scope = Scope(flags.topic or (), flags.all_topics)
    if flags.to_datetime is not None and flags.by_duration is not None:
        raise UsageError("--to-datetime and --by-duration cannot be used together")
    destination = one_destination(
        {
            Target.EARLIEST: 0 if flags.to_earliest else None,
            Target.LATEST: 0 if flags.to_latest else None,
            Target.CURRENT: 0 if flags.to_current else None,
            Target.OFFSET: flags.to_offset,
            Target.SHIFT: flags.shift_by,
            Target.TIME: _moment(flags),
        },
        flags.from_file,
    )
    check_scope(scope, destination)
    if not flags.dry_run and not flags.execute:
        output.note("WARN: No action will be performed as the --execute option is missing.")
    plans = reset_plans(cluster, _groups(cluster, flags), destination, scope)
    warn(plans)
    if flags.execute:
        apply_plans(cluster, plans)
    if flags.export:
        offsets = {group: {change.where: change.new for change in changes} for group, changes in plans.items()}
        output.write(plan_as_csv(offsets, with_group=len(flags.group or ()) != 1).encode())
    else:
        output.line()
        _print(reset_lines(plans))


def _moment(flags: argparse.Namespace) -> int | None:
    if flags.by_duration is not None:
        return SystemClock().now_ms() - parse_duration_ms(flags.by_duration)
    return None if flags.to_datetime is None else utc_moment(flags.to_datetime)


def utc_moment(text: str) -> int:
    """Returns milliseconds since 1970. A time without a zone is UTC as in Kafka's tool; in ``skep`` it is local."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(f"'{text}' is not a time; expected one like 2024-05-01T12:00:00.000") from None
    return round((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)


def _delete_offsets(cluster: Cluster, flags: argparse.Namespace) -> None:
    [group] = flags.group
    errors = delete_offsets(cluster, group, flags.topic)
    failed = any(errors.values())
    if not failed:
        output.line(f"Request succeeded for deleting offsets from group {group}.")
    output.line()
    _print(deletion_lines(errors))
    if failed:
        raise CommandError("Encountered some partition-level error, see the follow-up details.")


def _validate(regex: str) -> None:
    from skep.base.errors import KafkaError
    from skep.coordination.groups.topic_patterns.topic_pattern import topic_pattern

    try:
        topic_pattern(regex)
    except KafkaError as error:
        why = str(error).rpartition(": ")[2].removesuffix(".")
        raise CommandError(f"The regular expression `{regex}` is invalid: {why}.") from None
    output.line(f"The regular expression `{regex}` is valid.")
