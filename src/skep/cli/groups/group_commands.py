"""``skep groups``: list, describe and delete consumer groups and share groups, export and delete their offsets."""

import dataclasses
from collections.abc import Callable
from typing import Annotated

import typer

from skep.cli import output
from skep.cli.connection import DEFAULT_BOOTSTRAP, Bootstrap, Cluster, Properties, cluster_of
from skep.cli.failures import CommandError, UsageError
from skep.cli.groups import group_admin
from skep.cli.groups.group_admin import committed_offsets, delete_groups, describe_groups, list_groups
from skep.cli.groups.group_lag import LagRow, lag_rows, total_lag
from skep.cli.groups.group_views import SHARE, GroupView
from skep.cli.groups.offset_reset import reset_offsets
from skep.cli.groups.reset_plan import plan_as_csv
from skep.cli.output import Json

Group = Annotated[str, typer.Argument(metavar="GROUP")]
Groups = Annotated[list[str] | None, typer.Argument(metavar="GROUP")]
AllGroups = Annotated[bool, typer.Option("--all", help="All groups.")]


def register(app: typer.Typer) -> None:
    groups = typer.Typer(
        no_args_is_help=True, rich_markup_mode=None, help="Consumer and share groups: lag, members, offsets."
    )
    commands: dict[str, Callable[..., None]] = {
        "list": list_all,
        "describe": describe,
        "reset-offsets": reset_offsets,
        "export": export,
        "delete": delete,
        "delete-offsets": delete_offsets,
    }
    for name, command in commands.items():
        groups.command(name)(command)
    app.add_typer(groups, name="groups")


def list_all(
    state: Annotated[
        list[str] | None,
        typer.Option("--state", metavar="STATE", help="Only groups in this state, e.g. Stable or Empty. Repeatable."),
    ] = None,
    type: Annotated[
        list[str] | None,
        typer.Option("--type", metavar="TYPE", help="Only groups of this type: classic, consumer, share. Repeatable."),
    ] = None,
    json: Json = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    properties: Properties = None,
) -> None:
    """List groups with their state and type.

    \b
    Examples:
      skep groups list
      skep groups list --state Empty --json | jq -r '.[].group'
    """
    found = list_groups(cluster_of(bootstrap, properties), state or (), type or ())
    if json:
        output.document([dataclasses.asdict(listing) for listing in found])
    elif found:
        output.table(("group", "state", "type"), ((g.group, g.state, g.type) for g in found))
    else:
        output.note("No group matches." if state or type else "There are no groups.")


def describe(
    names: Groups = None,
    all_groups: AllGroups = False,
    members: Annotated[
        bool, typer.Option("--members", help="Show members and their partitions instead of offsets.")
    ] = False,
    state: Annotated[bool, typer.Option("--state", help="Show one line for each group instead of offsets.")] = False,
    json: Json = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    properties: Properties = None,
) -> None:
    """Show the lag of groups.

    For each partition: the committed offset (current), the log end offset, their difference (lag) and the member that
    reads it. For each partition of a share group: the offset where it starts, the log end offset, how many records in
    between are not finished (lag), and how many of those a member holds (in flight, which only Skep's brokers can
    tell). --members shows who reads it, skep queues describe who holds what since when.

    \b
    Examples:
      skep groups describe billing
      skep groups describe billing --members
      skep groups describe --all --state
      skep groups describe billing --json | jq '[.[].partitions[].lag] | add'
    """
    if members and state:
        raise UsageError("--members and --state cannot be used together")
    cluster = cluster_of(bootstrap, properties)
    views = describe_groups(cluster, _chosen(cluster, names, all_groups))
    rows = {view.group: [] if members or state else lag_rows(cluster, view) for view in views}
    if json:
        output.document([_as_document(view, None if members or state else rows[view.group]) for view in views])
    elif state:
        _show_states(views)
    else:
        for number, view in enumerate(views):
            if number:
                output.line()
            _show_members(view) if members else _show_lag(view, rows[view.group])


def _chosen(cluster: Cluster, names: list[str] | None, all_groups: bool) -> list[str]:
    if all_groups == bool(names):
        raise UsageError("give either group names or --all")
    return [listing.group for listing in list_groups(cluster)] if all_groups else list(dict.fromkeys(names or ()))


def _as_document(view: GroupView, rows: list[LagRow] | None) -> dict[str, object]:
    document: dict[str, object] = {
        "group": view.group,
        "state": view.state,
        "type": view.type,
        "assignor": view.assignor or None,
        "coordinator": {"id": view.coordinator_id, "address": view.coordinator},
        "members": [
            {
                "member_id": member.member_id,
                "client_id": member.client_id,
                "host": member.host,
                "instance_id": member.instance_id,
                "assignment": [place._asdict() for place in member.assignment],
            }
            for member in view.members
        ],
    }
    if rows is not None:
        document["lag"] = total_lag(rows)
        document["partitions"] = [
            {
                **row.where._asdict(),
                "current": row.current,
                "log_end": row.log_end,
                "lag": row.lag,
                **({"in_flight": row.in_flight} if view.type == SHARE else {}),
                "member_id": row.member and row.member.member_id,
                "host": row.member and row.member.host,
                "client_id": row.member and row.member.client_id,
            }
            for row in rows
        ]
    return document


def _head(view: GroupView, *more: str) -> str:
    members = output.count(len(view.members), "member") if view.members else "no members"
    return "  ".join((view.group, view.state, view.type, members, *more))


def _show_lag(view: GroupView, rows: list[LagRow]) -> None:
    output.line(_head(view, f"lag {total_lag(rows):,}"))
    if not rows:
        output.line("  no committed offsets" if view.type != SHARE else "  no partitions")
        return
    if view.type == SHARE:
        output.table(
            ("topic", "partition", "start", "log end", "lag", "in flight"),
            ((*row.where, row.current, row.log_end, row.lag, row.in_flight) for row in rows),
            right=("partition", "start", "log end", "lag", "in flight"),
        )
        return
    output.table(
        ("topic", "partition", "current", "log end", "lag", "member", "host", "client"),
        (
            (
                *row.where,
                row.current,
                row.log_end,
                row.lag,
                row.member and row.member.member_id,
                row.member and row.member.host,
                row.member and row.member.client_id,
            )
            for row in rows
        ),
        right=("partition", "current", "log end", "lag"),
    )


def _show_members(view: GroupView) -> None:
    output.line(_head(view))
    if view.members:
        output.table(
            ("member", "instance", "host", "client", "partitions"),
            (
                (m.member_id, m.instance_id, m.host, m.client_id, " ".join(map(str, m.assignment)) or None)
                for m in view.members
            ),
        )


def _show_states(views: list[GroupView]) -> None:
    output.table(
        ("group", "state", "type", "members", "assignor", "coordinator"),
        (
            (v.group, v.state, v.type, len(v.members), v.assignor or None, f"{v.coordinator} ({v.coordinator_id})")
            for v in views
        ),
        right=("members",),
    )


def export(
    names: Groups = None,
    all_groups: AllGroups = False,
    json: Json = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    properties: Properties = None,
) -> None:
    """Print the committed offsets of groups as CSV.

    The offsets of a share group are those where it starts. reset-offsets --from-file reads them back. The lines are
    topic,partition,offset for one group and group,topic,partition,offset for several.

    \b
    Examples:
      skep groups export billing > billing.csv
      skep groups export --all > all.csv
      skep groups reset-offsets billing --from-file billing.csv --execute
    """
    cluster = cluster_of(bootstrap, properties)
    views = describe_groups(cluster, _chosen(cluster, names, all_groups))
    committed = {view.group: committed_offsets(cluster, view.group) for view in views}
    if json:
        output.document(
            [
                {"group": group, **place._asdict(), "offset": at.offset, "metadata": at.metadata}
                for group, offsets in committed.items()
                for place, at in sorted(offsets.items())
            ]
        )
        return
    numbers = {group: {place: at.offset for place, at in offsets.items()} for group, offsets in committed.items()}
    output.write(plan_as_csv(numbers, with_group=all_groups or len(views) != 1).encode())


def delete(
    names: Annotated[list[str], typer.Argument(metavar="GROUP")],
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    properties: Properties = None,
) -> None:
    """Delete groups and their offsets. A group with members is not deleted.

    \b
    Examples:
      skep groups delete billing
    """
    errors = delete_groups(cluster_of(bootstrap, properties), names)
    for name, error in errors.items():
        if error is None:
            output.line(f"Deleted group {name}.")
    if failures := [f"cannot delete group '{name}': {error}" for name, error in errors.items() if error is not None]:
        raise CommandError("; ".join(failures))


def delete_offsets(
    group: Group,
    topics: Annotated[
        list[str], typer.Argument(metavar="TOPIC[:PARTITION,...]", help="For example orders or orders:0,2.")
    ],
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    properties: Properties = None,
) -> None:
    """Delete committed offsets of a group.

    The offsets of a topic that a member of the group is subscribed to are not deleted. Those of a share group are
    deleted by topic, and only if it has no members.

    \b
    Examples:
      skep groups delete-offsets billing orders
      skep groups delete-offsets billing orders:0,2 payments
    """
    errors = group_admin.delete_offsets(cluster_of(bootstrap, properties), group, topics)
    if failures := [f"cannot delete the offset of {at}: {error}" for at, error in errors.items() if error is not None]:
        raise CommandError("; ".join(failures))
    output.line(f"Deleted {output.count(len(errors), 'offset')} of group {group}.")
