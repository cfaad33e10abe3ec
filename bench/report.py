"""What a run leaves behind: a table for people, ``results.json`` for scripts, ``results.png`` for both."""

import json
import os
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.row import Row

RESULTS = Path(__file__).parent / "results"

TITLE = "Skep against its references"
MET = "#2f7d4f"
MISSED = "#b3412e"


def as_json(rows: Sequence[Row]) -> dict[str, Any]:
    machine = {"processors": os.cpu_count(), "python": platform.python_version(), "system": platform.platform()}
    return {"machine": machine, "rows": [row.as_json() for row in rows]}


def print_table(rows: Sequence[Row], title: str = TITLE) -> None:
    table = Table(title=title)
    table.add_column("row", no_wrap=True)
    table.add_column("what")
    table.add_column("skep", justify="right")
    table.add_column("reference", justify="right")
    table.add_column("measured", justify="right", no_wrap=True)
    has_medians = any(row.median is not None for row in rows)
    if has_medians:
        table.add_column("median", justify="right", no_wrap=True)
    table.add_column("bar", no_wrap=True)
    table.add_column("", no_wrap=True)
    for row in rows:
        verdict = "" if row.bar is None else "[green]met[/]" if row.ok else "[bold red]MISSED[/]"
        medians = (["" if row.median is None else row.number(row.median)]) if has_medians else []
        table.add_row(row.name, row.what, row.ours, row.reference, row.measured_text, *medians, row.bar_text, verdict)
    # In a pipe there is no width to ask for, and a table of 80 columns would be all line breaks.
    console = Console()
    Console(width=max(console.width, 150) if not console.is_terminal else None).print(table)


def write_results(rows: Sequence[Row], name: str = "results", title: str = TITLE) -> None:
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps(as_json(rows), indent=2) + "\n")
    _draw(rows, RESULTS / f"{name}.png", title)


def _draw(rows: Sequence[Row], path: Path, title: str) -> None:
    """One bar a row: how far it is from what was asked, on a logarithmic scale, right of the line being better."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    shown = [row for row in reversed(rows) if row.bar is not None]
    if not shown:
        return
    figure, axes = pyplot.subplots(figsize=(11, 1.3 + 0.52 * len(shown)), layout="constrained")
    places = range(len(shown))
    margins = [row.margin for row in shown]
    axes.barh(
        places,
        [margin - 1 for margin in margins],
        left=1,
        height=0.6,
        color=[MET if row.ok else MISSED for row in shown],
    )
    axes.set_xscale("log")
    axes.set_xlim(min(0.4, *margins) / 1.3, max(2.5, *margins) * 2.2)
    axes.axvline(1, color="black", linewidth=1)
    axes.set_yticks(places, [row.name for row in shown])
    for place, row in zip(places, shown, strict=True):
        text = f" {row.measured_text} ({row.bar_text})" + ("" if row.ok else "  MISSED")
        axes.text(max(row.margin, 1), place, text, va="center", fontsize=9)
    ticks = [tick for tick in (0.1, 0.2, 0.5, 1, 2, 5, 10) if min(0.4, *margins) / 1.3 <= tick <= max(margins) * 2.2]
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
    axes.set_xlabel("times as good as the bar asks (logarithmic)")
    axes.set_title(title)
    axes.grid(axis="x", linewidth=0.4, alpha=0.6)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    figure.savefig(path, dpi=130)
    pyplot.close(figure)
