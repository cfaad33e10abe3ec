"""The graph of a pipeline drawn as text and as SVG, with the numbers of the last run at its flows.

As text it is a tree from the topics on: a dataset that several others feed is drawn under the first of them, and named
at the others. In the picture each dataset is a box, right of everything it is computed from.
"""

from collections.abc import Mapping
from html import escape
from typing import Any

from skep.cli.spark.pipeline_display import duration
from skep.cli.spark.pipeline_graph import SINK, SOURCE, TOPIC, Dataset, FlowEdge, FlowGraph

Figures = Mapping[str, Mapping[str, Any]]
"""The flows of the last run by name, as JSON."""


def text_of(graph: FlowGraph, figures: Figures, heading: str) -> list[str]:
    """Returns the lines of the drawing."""
    drawn: set[str] = set()
    lines = [heading, ""]

    def draw(key: str, prefix: str) -> None:
        below = [flow for flow in graph.flows if key in flow.inputs]
        for number, flow in enumerate(below):
            last = number == len(below) - 1
            rows.append(
                (f"{prefix}{'└─ ' if last else '├─ '}{_label(graph, flow)}", numbers_of(figures.get(flow.name)))
            )
            # In a cycle, and at the second way to a dataset, what is below it is not drawn again.
            if flow.target not in drawn:
                drawn.add(flow.target)
                draw(flow.target, prefix + ("   " if last else "│  "))

    rows: list[tuple[str, str]] = []
    for key in _roots(graph):
        rows.append((_title(graph.datasets[key]), ""))
        drawn.add(key)
        draw(key, "")
    width = max((len(left) for left, right in rows if right), default=0)
    return lines + [f"{left:<{width}}  {right}".rstrip() for left, right in rows]


def numbers_of(flow: Mapping[str, Any] | None) -> str:
    """Returns ``completed, 6 in, 4 out, 2 bad, lag 0, 14 s`` of what is known."""
    if flow is None:
        return ""
    parts = [str(flow.get("state", ""))]
    for name, word in (("rows_in", "in"), ("rows_out", "out"), ("bad_rows", "bad")):
        if flow.get(name) is not None:
            parts.append(f"{flow[name]:,} {word}")
    if flow.get("lag") is not None:
        parts.append(f"lag {flow['lag']:,}")
    return ", ".join([*parts, duration(flow.get("seconds") or 0.0)])


def _label(graph: FlowGraph, flow: FlowEdge) -> str:
    dataset = graph.datasets[flow.target]
    others = [graph.datasets[key].name for key in flow.inputs[1:]]
    by = f", by {flow.name}" if flow.name not in (dataset.name, flow.target) else ""
    return f"{_title(dataset)}{by}{f', with {chr(44).join(others)}' if others else ''}"


def _title(dataset: Dataset) -> str:
    if dataset.kind == SINK and dataset.topic is not None:
        return f"topic {dataset.topic} (sink {dataset.name})"
    return f"{dataset.kind} {dataset.name}"


def _roots(graph: FlowGraph) -> list[str]:
    """Returns the datasets that no flow writes, and of a cycle without one of these its first."""
    targets = {flow.target for flow in graph.flows}
    roots = [key for key in graph.datasets if key not in targets]
    reached: set[str] = set()

    def reach(key: str) -> None:
        if key not in reached:
            reached.add(key)
            for flow in graph.flows:
                if key in flow.inputs:
                    reach(flow.target)

    for key in roots:
        reach(key)
    for key in graph.datasets:
        if key not in reached:
            roots.append(key)
            reach(key)
    return roots


BOX_WIDTH, BOX_HEIGHT, GAP_X, GAP_Y, MARGIN = 290, 66, 70, 22, 24
_FILL = {TOPIC: "#fff3cd", SINK: "#fff3cd", SOURCE: "#e9ecef"}
_STROKE = {"completed": "#2b8a3e", "failed": "#c92a2a", "retrying": "#c92a2a", "skipped": "#e67700"}
_LETTERS = 38
"""How many fit into a box."""


def svg_of(graph: FlowGraph, figures: Figures, heading: str) -> str:
    """Returns the picture."""
    places = _places(graph)
    width = max((x for x, _ in places.values()), default=0) + BOX_WIDTH + MARGIN
    height = max((y for _, y in places.values()), default=0) + BOX_HEIGHT + MARGIN
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        'font-family="sans-serif" font-size="12">',
        '<rect width="100%" height="100%" fill="#ffffff"/>',
        f'<text x="{MARGIN}" y="{MARGIN}" font-size="14">{escape(heading)}</text>',
    ]
    for flow in graph.flows:
        parts += [_line(places[key], places[flow.target]) for key in flow.inputs]
    for key, (x, y) in places.items():
        written = [figures[flow.name] for flow in graph.flows if flow.target == key and flow.name in figures]
        parts += _box(graph.datasets[key], x, y, written)
    return "\n".join([*parts, "</svg>", ""])


def _places(graph: FlowGraph) -> dict[str, tuple[int, int]]:
    """Returns the corner of each box: a column is as far right as the longest way to it, a row is the next free one."""
    columns = dict.fromkeys(graph.datasets, 0)
    # As many rounds as datasets are enough; a cycle would need more and is cut.
    for _ in graph.datasets:
        for flow in graph.flows:
            furthest = max((columns[key] for key in flow.inputs), default=-1) + 1
            columns[flow.target] = min(max(columns[flow.target], furthest), len(graph.datasets))
    used: dict[int, int] = {}
    places = {}
    for key, column in columns.items():
        row = used.get(column, 0)
        used[column] = row + 1
        places[key] = (MARGIN + column * (BOX_WIDTH + GAP_X), 2 * MARGIN + row * (BOX_HEIGHT + GAP_Y))
    return places


def _box(dataset: Dataset, x: int, y: int, flows: list[Mapping[str, Any]]) -> list[str]:
    state = next((str(flow.get("state")) for flow in flows if flow.get("state") != "completed"), "completed")
    stroke = _STROKE.get(state, "#495057") if flows else "#868e96"
    rows = [_sum(flows, name) for name in ("rows_in", "rows_out", "bad_rows")]
    words = ("in", "out", "bad")
    counts = ", ".join(f"{n:,} {word}" for n, word in zip(rows, words, strict=True) if n is not None)
    lag = _sum(flows, "lag")
    seconds = sum(flow.get("seconds") or 0.0 for flow in flows)
    second = ", ".join(filter(None, [state, f"lag {lag:,}" if lag is not None else "", duration(seconds)]))
    texts = [(_title(dataset), "bold"), (counts, "normal"), (second if flows else "", "normal")]
    fill = _FILL.get(dataset.kind, "#e7f5ff")
    box = f'<rect x="{x}" y="{y}" width="{BOX_WIDTH}" height="{BOX_HEIGHT}" rx="6" fill="{fill}" stroke="{stroke}"/>'
    return [box] + [
        f'<text x="{x + 10}" y="{y + 20 + 18 * number}" font-weight="{weight}">{escape(_cut(text))}</text>'
        for number, (text, weight) in enumerate(texts)
        if text
    ]


def _sum(flows: list[Mapping[str, Any]], name: str) -> int | None:
    known = [flow[name] for flow in flows if flow.get(name) is not None]
    return sum(known) if known else None


def _line(start: tuple[int, int], end: tuple[int, int]) -> str:
    x1, y1 = start[0] + BOX_WIDTH, start[1] + BOX_HEIGHT // 2
    x2, y2 = end[0], end[1] + BOX_HEIGHT // 2
    bend = GAP_X // 2
    return f'<path d="M{x1},{y1} C{x1 + bend},{y1} {x2 - bend},{y2} {x2},{y2}" fill="none" stroke="#adb5bd"/>'


def _cut(text: str) -> str:
    return text if len(text) <= _LETTERS else text[: _LETTERS - 1] + "…"
