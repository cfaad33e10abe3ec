"""``kafka-share-groups`` with Kafka's flags: list, describe and delete share groups, reset and delete their offsets.

Left out: ``--from-file`` of a consumer group's offsets (KIP-1323).
"""

import argparse
import sys

from skep.cli import output
from skep.cli.connection import Cluster
from skep.cli.failures import CommandError, UsageError, run
from skep.cli.groups.group_admin import INACTIVE, unknown_group
from skep.cli.groups.group_lag import lag_rows
from skep.cli.groups.group_views import GroupView
from skep.cli.groups.offset_reset import one_destination
from skep.cli.groups.reset_plan import Target
from skep.cli.groups.share_group_admin import (
    delete_share_offsets,
    find_share_groups,
    list_share_groups,
    set_start_offsets,
)
from skep.cli.kafka.kafka_flags import KafkaFlags, cluster_from
from skep.cli.kafka.kafka_group_flags import (
    add_group_flags,
    chosen_action,
    delete_and_report,
    print_lines,
    reset_and_report,
    utc_moment,
)
from skep.cli.kafka.kafka_group_rows import (
    aligned,
    share_deletion_lines,
    share_member_lines,
    share_offset_lines,
    share_state_lines,
)

EXAMPLES = """\
  kafka-share-groups --bootstrap-server localhost:9092 --list
  kafka-share-groups --bootstrap-server localhost:9092 --describe --group mailer
  kafka-share-groups --bootstrap-server localhost:9092 --group mailer --reset-offsets --topic orders \\
      --to-earliest --execute
"""
ACTIONS = {
    "list": "list all share groups",
    "describe": "describe share groups and show their lag",
    "delete": "delete share groups and their offsets",
    "reset_offsets": "reset the offsets where a share group starts",
    "delete_offsets": "delete the offsets of a share group for topics",
}
_OF_RESET = ("dry_run", "execute", "export", "all_topics", "from_file", "to_offset", "to_datetime", "to_earliest")
ALLOWED = {
    **dict.fromkeys(("members", "offsets", "verbose"), ("describe",)),
    **dict.fromkeys((*_OF_RESET, "to_latest", "to_current"), ("reset_offsets",)),
    "state": ("describe", "list"),
    "topic": ("reset_offsets", "delete_offsets"),
    "all_groups": ("describe", "delete"),
    "group": ("describe", "delete", "reset_offsets", "delete_offsets"),
}
"""The actions that each flag can be used with."""
STATES = ("Empty", "Stable", "Dead")


def main() -> None:
    sys.exit(run("kafka-share-groups", lambda: execute(None)))


def execute(arguments: list[str] | None) -> None:
    about = "List, describe, delete and reset the offsets of share groups."
    parser = KafkaFlags("kafka-share-groups", about, EXAMPLES)
    add_group_flags(parser, ACTIONS)
    flags = parser.parse(arguments)
    action = chosen_action(flags, ACTIONS, ALLOWED)
    cluster = cluster_from(flags, flags.timeout / 1000)
    {
        "list": _list,
        "describe": _describe,
        "delete": _delete,
        "reset_offsets": _reset_offsets,
        "delete_offsets": _delete_offsets,
    }[action](cluster, flags)


def _list(cluster: Cluster, flags: argparse.Namespace) -> None:
    states = [name.strip() for name in (flags.state or "").split(",") if name.strip()]
    for name in states:
        if name.capitalize() not in STATES:
            raise UsageError(f"'{name}' is not a state of share groups; they are {', '.join(STATES)}")
    found = list_share_groups(cluster, states)
    if flags.state is None:
        print_lines([listing.group for listing in found])
    else:
        print_lines(aligned([("GROUP", 15), ("STATE", 0)], ((one.group, one.state) for one in found)))


def _views(cluster: Cluster, flags: argparse.Namespace) -> list[GroupView]:
    """Returns the chosen groups. Raises CommandError for one that does not exist or is not a share group."""
    known = [listing.group for listing in list_share_groups(cluster)]
    names = known if flags.all_groups else list(dict.fromkeys(flags.group))
    views = []
    for name, view in find_share_groups(cluster, names).items():
        if view is None:
            raise unknown_group(name, known)
        views.append(view)
    return views


def _describe(cluster: Cluster, flags: argparse.Namespace) -> None:
    for view in _views(cluster, flags):
        if view.state in INACTIVE:
            output.note(f"\nShare group '{view.group}' has no active members.")
        output.line()
        if flags.members:
            if view.members:
                print_lines(share_member_lines(view, verbose=flags.verbose))
        elif flags.state is not None:
            print_lines(share_state_lines(view, verbose=flags.verbose))
        elif rows := lag_rows(cluster, view):
            print_lines(share_offset_lines(view, rows, verbose=flags.verbose))
        else:
            output.line(f"Share group '{view.group}' has no offset information.")


def _delete(cluster: Cluster, flags: argparse.Namespace) -> None:
    delete_and_report(cluster, [view.group for view in _views(cluster, flags)], "share groups")


def _reset_offsets(cluster: Cluster, flags: argparse.Namespace) -> None:
    if not flags.dry_run and not flags.execute:
        raise UsageError("--reset-offsets takes the option: --execute or --dry-run")
    if len(flags.group) != 1:
        raise UsageError("--reset-offsets takes one --group")
    destination = one_destination(
        {
            Target.EARLIEST: 0 if flags.to_earliest else None,
            Target.LATEST: 0 if flags.to_latest else None,
            Target.CURRENT: 0 if flags.to_current else None,
            Target.OFFSET: flags.to_offset,
            Target.TIME: None if flags.to_datetime is None else utc_moment(flags.to_datetime),
        },
        flags.from_file,
    )
    # Not as in ``skep groups``: a group that does not exist becomes a share group.
    reset_and_report(cluster, flags, lambda: flags.group, destination, set_start_offsets)


def _delete_offsets(cluster: Cluster, flags: argparse.Namespace) -> None:
    [group] = flags.group
    errors = delete_share_offsets(cluster, group, list(dict.fromkeys(flags.topic)))
    if errors is None:
        raise unknown_group(group, (listing.group for listing in list_share_groups(cluster)))
    output.line()
    print_lines(share_deletion_lines(errors))
    if any(errors.values()):
        raise CommandError("Encountered some topic-level error, see the follow-up details.")
