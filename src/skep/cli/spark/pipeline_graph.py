"""The graph of a pipeline: its topics, views and tables, and the flows between them.

The inputs of a flow in Python are found in its plan, as Spark Connect sends it: each leaf reads a table or a data
source. Of a flow in SQL only the text is known here, so its inputs are the names after FROM, JOIN and STREAM. A name
that the pipeline does not define, such as that of a table of another pipeline, is shown as a table.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

TOPIC, VIEW, TABLE, MATERIALIZED_VIEW, SINK, SOURCE = "topic", "view", "table", "materialized view", "sink", "source"
DEFAULT_DATABASE = "spark_catalog.default"


@dataclass(frozen=True)
class Dataset:
    """A node. ``name`` is its name in the pipeline; a sink that writes a topic also has ``topic``."""

    name: str
    kind: str
    topic: str | None = None

    @property
    def key(self) -> str:
        """Distinguishes the topic ``orders`` from the table ``orders``."""
        topic = self.name if self.kind == TOPIC else self.topic
        return self.name if topic is None else f"topic {topic}"


@dataclass(frozen=True)
class FlowEdge:
    """A flow writes ``target`` from ``inputs``, both keys of datasets."""

    name: str
    target: str
    inputs: tuple[str, ...]
    file: str = ""
    """Where it is defined, relative to the project."""


@dataclass
class FlowGraph:
    datasets: dict[str, Dataset] = field(default_factory=dict)
    flows: list[FlowEdge] = field(default_factory=list)
    file: str = ""
    """The file whose definitions are being added."""

    def add(self, dataset: Dataset) -> str:
        """Adds a dataset. A topic that one flow writes and another reads is one node, with the name of the sink."""
        known = self.datasets.get(dataset.key)
        if known is None or known.kind in (TOPIC, TABLE):
            self.datasets[dataset.key] = dataset
        return dataset.key

    def add_flow(self, name: str, target: str, inputs: Iterable[Dataset]) -> None:
        """Adds a flow. ``target`` is the name in the pipeline; it may be defined later."""
        keys = []
        for one in inputs:
            if one.key not in self.datasets:
                self.add(one)
            keys.append(one.key)
        self.flows.append(FlowEdge(name, target, tuple(dict.fromkeys(keys)), self.file))

    def complete(self) -> "FlowGraph":
        """Replaces the names of sinks by the keys of their topics, once all definitions are known."""
        keys = {dataset.name: key for key, dataset in self.datasets.items() if dataset.kind == SINK}
        self.flows = [replace(one, target=keys.get(one.target, one.target)) for one in self.flows]
        for one in self.flows:
            self.datasets.setdefault(one.target, Dataset(one.target, TABLE))
        return self

    @property
    def source_topics(self) -> list[str]:
        """Returns the topics that flows read, sorted."""
        read = {key for flow in self.flows for key in flow.inputs}
        found = (self.datasets[key] for key in read)
        return sorted(one.topic or one.name for one in found if one.kind == TOPIC or one.topic is not None)

    @property
    def has_other_sources(self) -> bool:
        """Returns whether a flow reads something else than topics and the pipeline's own datasets."""
        targets = {flow.target for flow in self.flows}
        read = {key for flow in self.flows for key in flow.inputs} - targets
        return any(self.datasets[key].kind in (TABLE, SOURCE) for key in read)

    def to_json(self) -> dict[str, Any]:
        return {
            "datasets": [asdict(one) for one in self.datasets.values()],
            "flows": [asdict(one) for one in self.flows],
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> "FlowGraph":
        """Raises KeyError or TypeError if ``document`` is not of ``to_json``."""
        graph = cls()
        for one in document["datasets"]:
            graph.add(Dataset(**one))
        graph.flows = [FlowEdge(**{**one, "inputs": tuple(one["inputs"])}) for one in document["flows"]]
        return graph


def plan_inputs(plan: Any) -> Iterator[Dataset]:
    """Yields what the leaves of a plan of Spark Connect (a protobuf message) read."""
    for found, value in plan.ListFields():
        if found.message_type is None:
            continue
        # A map field is neither a message nor a list of messages.
        parts = [value] if hasattr(value, "ListFields") else [] if hasattr(value, "items") else list(value)
        for part in parts:
            if found.name == "named_table":
                yield Dataset(_plain_name(part.unparsed_identifier), TABLE)
            elif found.name == "data_source":
                yield from _source_inputs(part.format, {name.lower(): text for name, text in part.options.items()})
            elif found.name == "with_relations":
                # Names that stand for other plans inside this one.
                aliases = {one.subquery_alias.alias for one in part.references}
                yield from (one for one in plan_inputs(part) if one.name not in aliases)
            elif found.name == "sql":
                yield from (Dataset(name, TABLE) for name in _names_read(part.query))
            else:
                yield from plan_inputs(part)


def _source_inputs(kind: str, options: Mapping[str, str]) -> Iterator[Dataset]:
    if kind.lower() not in ("skep", "kafka"):
        yield Dataset(kind or "source", SOURCE)
    elif topics := options.get("subscribe"):
        yield from (Dataset(topic.strip(), TOPIC) for topic in topics.split(","))
    else:
        yield Dataset(options.get("subscribepattern") or options.get("assign") or "topics", SOURCE)


_COMMENTS_AND_TEXTS = re.compile(r"--[^\n]*|/\*.*?\*/|'(?:[^'\\]|\\.|'')*'|\"(?:[^\"\\]|\\.)*\"", re.DOTALL)
_NAME = r"((?:`(?:[^`]|``)+`|[^\W\d]\w*)(?:\.(?:`(?:[^`]|``)+`|[^\W\d]\w*))*)"
_READ = re.compile(rf"\b(?:from|join|stream)\b[\s(]*(?:stream\b[\s(]*)?{_NAME}", re.IGNORECASE)
_DEFINED = re.compile(
    r"^\s*create\s+(?:or\s+(?:refresh|replace)\s+)?"
    r"(?P<kind>streaming\s+table|materialized\s+view|temporary\s+view|temp\s+view|flow)\s+"
    rf"(?:if\s+not\s+exists\s+)?{_NAME}",
    re.IGNORECASE,
)
_TARGET = re.compile(rf"\binto\s+(?:once\s+)?{_NAME}", re.IGNORECASE)
_KINDS = {"streaming": TABLE, "materialized": MATERIALIZED_VIEW, "temporary": VIEW, "temp": VIEW}


def add_sql(graph: FlowGraph, text: str) -> None:
    """Adds what a SQL file defines."""
    for statement in _COMMENTS_AND_TEXTS.sub(" ", text).split(";"):
        defined = _DEFINED.match(statement)
        if defined is None:
            continue
        name, rest = _plain_name(defined[2]), statement[defined.end() :]
        target = name
        if (kind := defined["kind"].split()[0].lower()) in _KINDS:
            graph.add(Dataset(name, _KINDS[kind]))
        elif (into := _TARGET.search(rest)) is not None:
            target = _plain_name(into[1])
        inputs = [Dataset(read, TABLE) for read in _names_read(rest)]
        if inputs:
            graph.add_flow(name, target, inputs)


def _names_read(query: str) -> list[str]:
    query = _COMMENTS_AND_TEXTS.sub(" ", query)
    # The names of WITH x AS (...) are no tables.
    local = {name.lower() for name in re.findall(r"([^\W\d]\w*)\s+as\s*\(", query, re.IGNORECASE)}
    names = dict.fromkeys(_plain_name(name) for name in _READ.findall(query))
    return [name for name in names if name.lower() not in {*local, "select", "values", "stream"}]


def _plain_name(name: str) -> str:
    return short_name(name.replace("``", "`") if name.count("`") != 2 else name)


def short_name(name: str, database: str = DEFAULT_DATABASE) -> str:
    """Returns ``orders`` for ``spark_catalog.default.orders``: most pipelines use only one database."""
    return name.replace("`", "").removeprefix(f"{database}.")
