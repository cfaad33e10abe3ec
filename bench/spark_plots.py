"""``python -m bench.spark_plots``: the plots of docs/PERFORMANCE-SPARK.md, from the results of the last run.

Draws what the rows in ``bench/results/results.json`` allow, so run the rows with Arrow and Spark before it.
"""

import json
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot
from matplotlib.axes import Axes

from bench.report import MET, MISSED, RESULTS

DOCS = Path(__file__).parents[1] / "docs"
LINE = "#2b5c8a"
PALE = "#b9c7d6"
RATIOS = (
    "spark-read",
    "spark-read-tuples",
    "spark-read-confluent",
    "spark-write",
    "spark-write-once",
    "read-arrow",
)
LABELS = {
    "spark-read": "read, to ready batches",
    "spark-read-tuples": "read, to consume() giving tuples",
    "spark-read-confluent": "read, to consume() giving Arrow",
    "spark-write": "write at least once, to ready batches",
    "spark-write-once": "write exactly once, to ready batches",
    "read-arrow": "read_arrow, to consume()",
}
LATENCIES = ("spark-latency", "spark-latency-once")
PARTS = ("latestOffset", "walCommit", "getBatch", "queryPlanning", "addBatch", "commitOffsets")

Rows = dict[str, dict[str, Any]]


def main() -> None:
    rows: Rows = {row["name"]: row for row in json.loads((RESULTS / "results.json").read_text())["rows"]}
    if all(name in rows for name in RATIOS):
        _save("spark-read.png", _draw_ratios, rows, (10, 3.6))
    if "spark-growth-rows" in rows:
        _save("spark-growth.png", _draw_growth, rows, (11, 4))
    if "spark-latency" in rows:
        _save("spark-latency.png", _draw_latency, rows, (10, 3.2))


def _save(name: str, draw: Any, rows: Rows, size: tuple[float, float]) -> None:
    figure = pyplot.figure(figsize=size, layout="constrained")
    draw(figure, rows)
    figure.savefig(DOCS / name, dpi=130)
    pyplot.close(figure)
    print(f"written: {DOCS / name}")


def _plain(axes: Axes, axis: Any = "y") -> None:
    axes.grid(axis=axis, linewidth=0.4, alpha=0.6)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _draw_ratios(figure: Any, rows: Rows) -> None:
    """One bar a row, in bars of what is asked: the line is the bar."""
    axes = figure.subplots()
    shown = [rows[name] for name in reversed(RATIOS)]
    margins = [row["measured"] / row["bar"] for row in shown]
    axes.barh(range(len(shown)), margins, height=0.6, color=[MET if row["ok"] else MISSED for row in shown])
    axes.axvline(1, color="black", linewidth=1)
    axes.set_yticks(range(len(shown)), [LABELS[row["name"]] for row in shown])
    for place, (row, margin) in enumerate(zip(shown, margins, strict=True)):
        axes.text(margin, place, f" {row['measured']:.2f} x (at least {row['bar']:g})", va="center", fontsize=9)
    axes.set_xlim(0, max(*margins, 1.5) * 1.35)
    axes.set_xlabel("times what the bar asks")
    axes.set_title("Topics in Spark and Arrow, against references of the same run (ratios of medians)")
    _plain(axes, "x")


def _draw_growth(figure: Any, rows: Rows) -> None:
    left, middle, right = figure.subplots(1, 3, width_ratios=[1, 1.3, 1])
    partitions, by_rows = rows["spark-growth-partitions"], rows["spark-growth-rows"]["details"]
    _draw_rates(left, [str(n) for n in partitions["details"]["partitions"]], partitions["details"]["rates"])
    left.set_xlabel("partitions")
    left.set_ylabel("M rows/s into noop")
    names = [f"{count / 1e6:g} M" for count in by_rows["records"]]
    _draw_rates(middle, names, by_rows["rates"])
    fixed = by_rows["fixed_s"]["median"]
    beyond = [
        count / (count / _median(rates) - fixed) / 1e6
        for count, rates in zip(by_rows["records"], by_rows["rates"], strict=True)
    ]
    middle.plot(range(len(names)), beyond, "o--", color=PALE, label=f"without {fixed:.2f} s of any query", zorder=1)
    middle.set_xlabel("rows")
    middle.legend(loc="lower right", fontsize=8, frameon=False)
    memory = {
        name.removeprefix("rows-"): max(runs["runs"])
        for name, runs in rows["spark-worker-memory"]["details"].items()
        if name.startswith("rows-")
    }
    right.bar(list(memory), list(memory.values()), color=LINE, width=0.6)
    right.set_ylabel("MB, largest Python worker")
    right.set_xlabel("rows")
    top = max(left.get_ylim()[1], middle.get_ylim()[1])
    for axes in (left, middle):
        axes.set_ylim(0, top * 1.05)
    for axes in (left, middle, right):
        _plain(axes)
    figure.suptitle("Reading a topic of 100-byte records into Spark: more partitions, more rows, memory")


def _draw_rates(axes: Axes, names: list[str], rates: list[list[float]]) -> None:
    """All runs as dots, their medians as the line."""
    for place, runs in enumerate(rates):
        axes.plot([place] * len(runs), [rate / 1e6 for rate in runs], ".", color=PALE, zorder=2)
    axes.plot(range(len(names)), [_median(runs) / 1e6 for runs in rates], "o-", color=LINE, zorder=3)
    axes.set_xticks(range(len(names)), names)


def _median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]


def _draw_latency(figure: Any, rows: Rows) -> None:
    """The parts of a micro-batch one behind the other, and above them what a record took from end to end."""
    axes = figure.subplots()
    colours = pyplot.get_cmap("tab10")
    for place, name in enumerate(reversed(LATENCIES)):
        details = rows[name]["details"]
        begun = 0.0
        for number, part in enumerate(PARTS):
            label = part if place == 0 else None
            axes.barh(place, details[part], left=begun, height=0.45, color=colours(number), label=label)
            begun += details[part]
        latencies = sorted(details["ms"])
        p50, p99 = _median(latencies), latencies[min(len(latencies) - 1, int(0.99 * len(latencies)))]
        axes.plot([p50, p99], [place + 0.33, place + 0.33], "-", color="black", linewidth=1)
        axes.plot([p50], [place + 0.33], "o", color="black")
        axes.text(p99, place + 0.33, f" p50 {p50:.0f} ms, p99 {p99:.0f} ms", va="center", fontsize=9)
    axes.set_yticks(range(len(LATENCIES)), ["exactly once", "at least once"])
    axes.set_xlim(0, axes.get_xlim()[1] * 1.25)
    axes.set_xlabel("ms; dot and line: from produce to consume, bar: medians of a micro-batch's parts")
    axes.legend(ncols=6, loc="upper center", bbox_to_anchor=(0.5, -0.22), fontsize=8, frameon=False)
    axes.set_title("One record through an idle stream with a trigger of 0 seconds")
    _plain(axes, "x")


if __name__ == "__main__":
    main()
