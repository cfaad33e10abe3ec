"""``kafka-consumer-groups`` with Kafka's flags: list, describe and delete groups, reset and delete their offsets."""

import argparse
import sys

from skep.base.clock import SystemClock
from skep.cli import output
from skep.cli.connection import Cluster
from skep.cli.failures import CommandError, UsageError, run
from skep.cli.groups.group_admin import INACTIVE, delete_offsets, describe_groups, list_groups
from skep.cli.groups.group_lag import lag_rows
from skep.cli.groups.group_views import SHARE, GroupView
from skep.cli.groups.offset_reset import one_destination
from skep.cli.groups.reset_plan import Target
from skep.cli.kafka.kafka_flags import KafkaFlags, cluster_from
from skep.cli.kafka.kafka_group_flags import (
    ANY,
    add_group_flags,
    chosen_action,
    delete_and_report,
    print_lines,
    reset_and_report,
    utc_moment,
)
from skep.cli.kafka.kafka_group_rows import deletion_lines, listing_lines, member_lines, offset_lines, state_lines
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


def main() -> None:
    sys.exit(run("kafka-consumer-groups", lambda: execute(None)))


def _parser() -> KafkaFlags:
    about = "List, describe, delete and reset the offsets of consumer groups."
    parser = KafkaFlags("kafka-consumer-groups", about, EXAMPLES)
    add_group_flags(parser, ACTIONS)
    parser.add_argument("--validate-regex", metavar="REGEX", help="check whether a regular expression is valid RE2")
    parser.add_argument("--type", nargs="?", const=ANY, help="with --list: show types, or filter by types")
    parser.add_argument("--shift-by", type=int, metavar="N", help="shift the offset by N, which may be negative")
    parser.add_argument("--by-duration", metavar="PnDTnHnMnS", help="reset to a time this long ago")
    return parser


def execute(arguments: list[str] | None) -> None:
    parser = _parser()
    if (regex := parser.parse_args(arguments).validate_regex) is not None:
        _validate(regex)
        return
    flags = parser.parse(arguments)
    action = chosen_action(flags, ACTIONS, ALLOWED, "validate_regex")
    cluster = cluster_from(flags, flags.timeout / 1000)
    {
        "list": _list,
        "describe": _describe,
        "delete": _delete,
        "reset_offsets": _reset_offsets,
        "delete_offsets": _delete_offsets,
    }[action](cluster, flags)


def _groups(cluster: Cluster, flags: argparse.Namespace) -> list[str]:
    if flags.all_groups:
        return [listing.group for listing in list_groups(cluster) if listing.type != SHARE]
    return list(dict.fromkeys(flags.group))


def _list(cluster: Cluster, flags: argparse.Namespace) -> None:
    states, types = ([name for name in (given or ANY).split(",") if name] for given in (flags.state, flags.type))
    found = [listing for listing in list_groups(cluster, states, types) if listing.type != SHARE]
    if flags.state is None and flags.type is None:
        print_lines([listing.group for listing in found])
    else:
        print_lines(listing_lines(found, with_type=flags.type is not None, with_state=flags.state is not None))


def _describe(cluster: Cluster, flags: argparse.Namespace) -> None:
    for view in describe_groups(cluster, _groups(cluster, flags)):
        _note_state(view)
        output.line()
        if flags.members:
            if view.members:
                print_lines(member_lines(view, verbose=flags.verbose))
        elif flags.state is not None:
            print_lines(state_lines(view, verbose=flags.verbose))
        elif rows := lag_rows(cluster, view):
            print_lines(offset_lines(view, rows, verbose=flags.verbose))


def _note_state(view: GroupView) -> None:
    if view.state in INACTIVE:
        output.note(f"\nConsumer group '{view.group}' has no active members.")
    elif view.state != "Stable":
        output.note(f"\nWarning: Consumer group '{view.group}' is rebalancing.")


def _delete(cluster: Cluster, flags: argparse.Namespace) -> None:
    delete_and_report(cluster, _groups(cluster, flags), "consumer groups")


def _reset_offsets(cluster: Cluster, flags: argparse.Namespace) -> None:
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
    if not flags.dry_run and not flags.execute:
        output.note("WARN: No action will be performed as the --execute option is missing.")
    reset_and_report(cluster, flags, lambda: _groups(cluster, flags), destination)


def _moment(flags: argparse.Namespace) -> int | None:
    if flags.by_duration is not None:
        return SystemClock().now_ms() - parse_duration_ms(flags.by_duration)
    return None if flags.to_datetime is None else utc_moment(flags.to_datetime)


def _delete_offsets(cluster: Cluster, flags: argparse.Namespace) -> None:
    [group] = flags.group
    errors = delete_offsets(cluster, group, flags.topic)
    failed = any(errors.values())
    if not failed:
        output.line(f"Request succeeded for deleting offsets from group {group}.")
    output.line()
    print_lines(deletion_lines(errors))
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
