"""``python -m bench [--json] [row ...]``: measures the named rows, or all of them, each beside its reference.

A row comes with the others of its module, which share what had to be set up. The exit code says whether it could be
measured, not whether a bar was met: the table says that.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from types import ModuleType

from bench import (
    acls,
    arrow_reading,
    bulk,
    compaction,
    failover,
    fetching,
    groups,
    held_topics,
    lookup,
    memory,
    offsets,
    partitions,
    quotas,
    replicated,
    report,
    secured,
    share_acknowledging,
    share_beside,
    share_consuming,
    share_rabbitmq,
    single,
    spark_growth,
    spark_latency,
    spark_topics,
    starting,
    store_notice,
    transactions,
)
from bench.row import Row
from bench.stalls import measure as stalls

GROUPS: tuple[ModuleType, ...] = (
    bulk,
    single,
    fetching,
    partitions,
    lookup,
    starting,
    secured,
    quotas,
    acls,
    memory,
    offsets,
    groups,
    transactions,
    share_consuming,
    share_acknowledging,
    share_rabbitmq,
    share_beside,
    held_topics,
    compaction,
    replicated,
    failover,
    store_notice,
    stalls,
    arrow_reading,
    spark_topics,
    spark_growth,
    spark_latency,
)


def main(arguments: Sequence[str] | None = None) -> int:
    names = [name for group in GROUPS for name in group.NAMES]
    parser = argparse.ArgumentParser(prog="python -m bench", description="Skep measured against references.")
    parser.add_argument("rows", nargs="*", metavar="row", help=f"any of: {', '.join(names)}; all when none is named")
    parser.add_argument("--json", action="store_true", help="print the results as JSON instead of a table")
    parser.add_argument(
        "--scale",
        type=float,
        default=1.0,
        help="a part of the records, for a quick look at the rows with Arrow or Spark",
    )
    chosen = parser.parse_args(arguments)
    if unknown := [name for name in chosen.rows if name not in names]:
        parser.error(f"there is no row {unknown[0]}; there are {', '.join(names)}")
    rows = measured(chosen.rows or names, chosen.scale)
    if chosen.json:
        print(json.dumps(report.as_json(rows), indent=2))
    else:
        report.print_table(rows)
    report.write_results(rows)
    print(f"bench: written to {report.RESULTS}", file=sys.stderr)
    return 0


def measured(names: Sequence[str], scale: float = 1.0) -> list[Row]:
    rows: list[Row] = []
    groups = [group for group in GROUPS if set(group.NAMES) & set(names)]
    for number, group in enumerate(groups, 1):
        print(f"bench: {', '.join(group.NAMES)} ({number} of {len(groups)})", file=sys.stderr, flush=True)
        for row in _measured(group, names, scale):
            verdict = "" if row.bar is None else "met" if row.ok else "MISSED"
            print(f"  {row.name}: {row.measured_text}, {row.bar_text}: {verdict}", file=sys.stderr, flush=True)
            rows.append(row)
    return rows


def _measured(group: ModuleType, names: Sequence[str], scale: float) -> Sequence[Row]:
    if getattr(group, "SCALABLE", False):
        rows: Sequence[Row] = group.measure(scale)
    elif getattr(group, "SELECTS", False):
        rows = group.measure(names)
    else:
        rows = group.measure()
    return rows


if __name__ == "__main__":
    raise SystemExit(main())
