"""The graph of a pipeline: what its SQL and its plans read, and how it is drawn."""

import xml.etree.ElementTree
from typing import Any

import pytest

from skep.cli.spark.graph_picture import BOX_WIDTH, numbers_of, svg_of, text_of
from skep.cli.spark.pipeline_graph import (
    MATERIALIZED_VIEW,
    SINK,
    SOURCE,
    TABLE,
    TOPIC,
    VIEW,
    Dataset,
    FlowEdge,
    FlowGraph,
    add_sql,
    plan_inputs,
)


@pytest.fixture
def shop() -> FlowGraph:
    """The project of ``skep pipeline init``, in the order of its files."""
    graph = FlowGraph()
    graph.add(Dataset("parsed_orders", VIEW))
    graph.add_flow("parsed_orders", "parsed_orders", [Dataset("orders", TOPIC)])
    graph.add(Dataset("orders", TABLE))
    graph.add_flow("orders", "orders", [Dataset("parsed_orders", TABLE)])
    graph.add(Dataset("bad_orders", SINK, "orders.bad"))
    graph.add_flow("to_bad_orders", "bad_orders", [Dataset("parsed_orders", TABLE)])
    add_sql(
        graph, "-- from nothing\nCREATE MATERIALIZED VIEW revenue AS\nSELECT 'from x' FROM orders GROUP BY product;"
    )
    return graph.complete()


def test_a_topic_and_a_table_of_the_same_name_are_two_nodes(shop: FlowGraph) -> None:
    assert list(shop.datasets) == ["parsed_orders", "topic orders", "orders", "topic orders.bad", "revenue"]
    assert shop.flows[2] == FlowEdge("to_bad_orders", "topic orders.bad", ("parsed_orders",))
    assert shop.flows[3] == FlowEdge("revenue", "revenue", ("orders",))
    assert shop.datasets["revenue"].kind == MATERIALIZED_VIEW
    assert shop.source_topics == ["orders"]
    assert not shop.has_other_sources


def test_a_topic_between_two_flows_is_one_node() -> None:
    graph = FlowGraph()
    graph.add_flow("late", "b", [Dataset("t", TOPIC)])
    graph.add(Dataset("out", SINK, "t"))
    graph.add_flow("early", "out", [Dataset("a", TABLE)])
    graph.complete()
    assert graph.datasets["topic t"] == Dataset("out", SINK, "t")
    assert [(flow.inputs, flow.target) for flow in graph.flows] == [(("topic t",), "b"), (("a",), "topic t")]
    assert graph.source_topics == ["t"]
    # "a" is a table that this pipeline does not write.
    assert graph.has_other_sources


def test_a_graph_is_read_as_it_was_written(shop: FlowGraph) -> None:
    assert FlowGraph.from_json(shop.to_json()) == shop


@pytest.mark.parametrize(
    ("text", "flow"),
    [
        ("CREATE STREAMING TABLE a AS SELECT * FROM STREAM(b)", FlowEdge("a", "a", ("b",))),
        ("create or refresh streaming table `a` as select * from stream `b`", FlowEdge("a", "a", ("b",))),
        ("CREATE TEMPORARY VIEW a AS SELECT * FROM b JOIN c.d USING (id)", FlowEdge("a", "a", ("b", "c.d"))),
        ("CREATE FLOW f AS INSERT INTO a BY NAME SELECT * FROM STREAM b", FlowEdge("f", "a", ("b",))),
        ("CREATE MATERIALIZED VIEW a AS WITH x AS (SELECT * FROM b) SELECT * FROM x", FlowEdge("a", "a", ("b",))),
        ("CREATE MATERIALIZED VIEW a AS SELECT * FROM (SELECT id FROM b) WHERE x = ';'", FlowEdge("a", "a", ("b",))),
    ],
)
def test_the_inputs_of_sql_are_found(text: str, flow: FlowEdge) -> None:
    graph = FlowGraph()
    add_sql(graph, text)
    assert graph.flows == [flow]


def _relation() -> Any:
    import pyspark.sql.connect.proto as pb2

    return pb2.Relation()


def test_the_inputs_of_a_plan_are_its_leaves() -> None:
    plan = _relation()
    join = plan.filter.input.join
    join.left.read.named_table.unparsed_identifier = "`spark_catalog`.`default`.`orders`"
    join.left.read.is_streaming = True
    join.right.with_relations.root.sql.query = "SELECT * FROM watermarked WATERMARK at DELAY OF INTERVAL 1 minute"
    reference = join.right.with_relations.references.add()
    reference.subquery_alias.alias = "watermarked"
    reference.subquery_alias.input.read.data_source.format = "skep"
    reference.subquery_alias.input.read.data_source.options["Subscribe"] = "a,b"
    assert list(plan_inputs(plan)) == [
        Dataset("orders", TABLE),
        Dataset("a", TOPIC),
        Dataset("b", TOPIC),
    ]


@pytest.mark.parametrize(
    ("kind", "options", "dataset"),
    [
        ("skep", {"subscribePattern": "orders.*"}, Dataset("orders.*", SOURCE)),
        ("parquet", {}, Dataset("parquet", SOURCE)),
        ("kafka", {"subscribe": "t"}, Dataset("t", TOPIC)),
    ],
)
def test_other_sources_are_nodes_too(kind: str, options: dict[str, str], dataset: Dataset) -> None:
    plan = _relation()
    plan.read.data_source.format = kind
    for name, value in options.items():
        plan.read.data_source.options[name] = value
    assert list(plan_inputs(plan)) == [dataset]


FIGURES = {
    "orders": {"state": "completed", "rows_in": 6, "rows_out": 4, "bad_rows": 2, "lag": 0, "seconds": 25.2},
    "revenue": {"state": "failed", "rows_in": None, "rows_out": None, "bad_rows": None, "lag": None, "seconds": 4.0},
}


def test_the_text_is_a_tree_with_numbers(shop: FlowGraph) -> None:
    assert text_of(shop, FIGURES, "shop: the last run ended now") == [
        "shop: the last run ended now",
        "",
        "topic orders",
        "└─ view parsed_orders",
        "   ├─ table orders                  completed, 6 in, 4 out, 2 bad, lag 0, 25 s",
        "   │  └─ materialized view revenue  failed, 4.0 s",
        "   └─ topic orders.bad (sink bad_orders), by to_bad_orders",
    ]


def test_a_cycle_is_drawn_once() -> None:
    graph = FlowGraph()
    graph.add_flow("f", "b", [Dataset("a", TABLE)])
    graph.add_flow("g", "a", [Dataset("b", TABLE)])
    graph.complete()
    assert text_of(graph, {}, "x")[2:] == ["table a", "└─ table b, by f", "   └─ table a, by g"]
    assert svg_of(graph, {}, "x")


def test_a_flow_with_two_inputs_is_under_both(shop: FlowGraph) -> None:
    graph = FlowGraph()
    graph.add_flow("c", "c", [Dataset("a", TOPIC), Dataset("b", TOPIC)])
    graph.add_flow("d", "d", [Dataset("c", TABLE)])
    graph.complete()
    assert text_of(graph, {}, "x")[2:] == [
        "topic a",
        "└─ table c, with b",
        "   └─ table d",
        "topic b",
        "└─ table c, with b",
    ]


def test_the_picture_is_svg_with_a_box_for_each_dataset(shop: FlowGraph) -> None:
    shop.datasets["revenue"] = Dataset("<revenue> & more than fits into a box", MATERIALIZED_VIEW)
    picture = xml.etree.ElementTree.fromstring(svg_of(shop, FIGURES, "shop"))
    name = "{http://www.w3.org/2000/svg}"
    boxes = [one for one in picture.iter(f"{name}rect") if one.get("width") == str(BOX_WIDTH)]
    assert len(boxes) == len(shop.datasets)
    assert len(list(picture.iter(f"{name}path"))) == len(shop.flows)
    texts = [one.text for one in picture.iter(f"{name}text")]
    [cut] = [text for text in texts if text and text.startswith("materialized view <revenue> & more")]
    assert cut.endswith("…")
    assert "6 in, 4 out, 2 bad" in texts
    assert "completed, lag 0, 25 s" in texts
    # No box covers another.
    places = [(int(one.get("x", "")), int(one.get("y", ""))) for one in boxes]
    assert len(set(places)) == len(places)
    assert int(picture.get("width", "")) >= max(x for x, _ in places) + BOX_WIDTH


def test_a_flow_that_did_not_run_has_no_numbers() -> None:
    assert numbers_of(None) == ""
