"""``skep groups reset-offsets``: the plan first, and the doing only when asked for."""

from pathlib import Path
from typing import Annotated

import typer

from skep.base.clock import SystemClock
from skep.cli import output
from skep.cli.connection import DEFAULT_BOOTSTRAP, Bootstrap, Properties, cluster_of
from skep.cli.failures import UsageError
from skep.cli.groups.offset_reset import Scope, apply_plans, check_scope, one_destination, reset_plans, warn
from skep.cli.groups.reset_plan import Change, Target
from skep.cli.moments import parse_duration_ms, parse_moment
from skep.cli.output import Json


def reset_offsets(
    group: Annotated[str, typer.Argument(metavar="GROUP")],
    topic: Annotated[
        list[str] | None,
        typer.Option("--topic", "-t", metavar="TOPIC[:PARTITION,...]", help="Whose offsets. Repeatable."),
    ] = None,
    all_topics: Annotated[bool, typer.Option("--all-topics", help="All that the group has committed.")] = False,
    to_earliest: Annotated[bool, typer.Option("--to-earliest", help="The oldest record that is there.")] = False,
    to_latest: Annotated[bool, typer.Option("--to-latest", help="The end: only what arrives from now on.")] = False,
    to_current: Annotated[bool, typer.Option("--to-current", help="What is committed, or else the end.")] = False,
    to_offset: Annotated[int | None, typer.Option("--to-offset", min=0, metavar="N", help="This offset.")] = None,
    to_datetime: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="The first record at or after 2024-05-01T12:00:00Z, or -1h30m (ago)."),
    ] = None,
    by_duration: Annotated[
        str | None, typer.Option(metavar="DURATION", help="The first record of the last 1h30m, or PT1H30M.")
    ] = None,
    shift_by: Annotated[
        int | None, typer.Option("--shift-by", metavar="N", help="N offsets further; -10 is ten back.")
    ] = None,
    from_file: Annotated[Path | None, typer.Option(metavar="FILE", help="What skep groups export printed.")] = None,
    execute: Annotated[bool, typer.Option("--execute", help="Do it. Without this the plan is only shown.")] = False,
    json: Json = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    properties: Properties = None,
) -> None:
    """Set what a group has committed, so that its members begin elsewhere when they come back.

    Without --execute nothing is changed: the plan is shown, old offset and new. The group must have no active members.
    An offset that a partition does not have is replaced by the nearest that it does, with a warning.

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
        raise UsageError("choose one: --to-datetime or --by-duration")
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
        output.note(f"Set {output.count(len(changes), 'offset')} of group {group}.")
    else:
        output.note("Nothing is changed yet; add --execute to do it.")
