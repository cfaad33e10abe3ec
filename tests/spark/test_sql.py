"""``skep sql``: topics as tables in queries; the views in the tests' own Spark, the command as a user runs it."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row, SparkSession

from skep.cli import output
from skep.cli.failures import CommandError
from skep.cli.spark.pipeline_display import STARTING
from skep.cli.sql.pipeline_tables import PipelineTables
from skep.cli.sql.query_result import QueryResult, print_csv, print_json, print_table
from skep.cli.sql.spark_engine import SparkEngine, SparkResult, query_errors
from skep.cli.sql.table_catalog import TableCatalog
from skep.cli.sql.topic_tables import TopicTables
from skep.testing import EmbeddedBroker
from tests.spark.conftest import Topics
from tests.spark.pipelining import skep
from tests.unit.cli.sql.test_query_text import RIGHT, WRONG

pytestmark = pytest.mark.xdist_group("spark")

ORDERS = [
    b'{"id": 1, "product": "eggs", "price": 0.5, "tags": ["a"]}',
    b'{"id": 2, "product": "hen", "price": 21}',
    b"no json",
    None,
    b'{"id": 5, "product": "eggs", "price": "free", "_offset": 77}',
]


class Known(TableCatalog):
    """A catalog without a cluster."""

    def __init__(self) -> None:
        self._names = {"orders", "a.b"}
        self.pipeline = PipelineTables()


KNOWN = Known()


@pytest.fixture
def orders(topics: Topics, topic: str) -> str:
    """A name with a dash, as many topics have."""
    topics.create(topic)
    topics.fill(topic, ORDERS)
    return topic


def _ask(spark: SparkSession, broker: EmbeddedBroker, topic: str, query: str, schema: str | None = None) -> list[Any]:
    topics = TopicTables(broker.bootstrap_servers, {} if schema is None else {topic: schema})
    engine = SparkEngine(TableCatalog(topics), "")
    engine._session = spark
    return list(engine.run(query.replace("TOPIC", f"`{topic}`")).rows())


def test_fields_are_found_in_the_values(spark: SparkSession, broker: EmbeddedBroker, orders: str) -> None:
    rows = _ask(spark, broker, orders, "SELECT product, count(*) AS n FROM TOPIC GROUP BY product ORDER BY product")
    assert rows == [Row(product=None, n=2), Row(product="eggs", n=2), Row(product="hen", n=1)]


def test_every_record_has_its_columns(spark: SparkSession, broker: EmbeddedBroker, orders: str) -> None:
    columns = "_key, _value, _partition, _offset, _timestamp IS NOT NULL AS t"
    query = f"SELECT {columns} FROM TOPIC WHERE id IS NULL ORDER BY _offset"
    assert _ask(spark, broker, orders, query) == [
        Row(_key="2", _value="no json", _partition=0, _offset=2, t=True),
        Row(_key="3", _value=None, _partition=0, _offset=3, t=True),
    ]


def test_a_given_schema_decides_and_what_does_not_fit_is_null(
    spark: SparkSession, broker: EmbeddedBroker, orders: str
) -> None:
    rows = _ask(spark, broker, orders, "SELECT * FROM TOPIC WHERE id >= 2 ORDER BY id", "id INT, price DOUBLE")
    assert [(row["id"], row["price"]) for row in rows] == [(2, 21.0), (5, None)]
    assert rows[0].__fields__ == ["id", "price", "_key", "_value", "_partition", "_offset", "_timestamp"]


def test_a_topic_without_json_has_the_columns_of_records(
    spark: SparkSession, broker: EmbeddedBroker, topics: Topics, topic: str
) -> None:
    topics.create(topic)
    topics.fill(topic, [b"plain", b"text"])
    assert _ask(spark, broker, topic, "SELECT _value FROM TOPIC ORDER BY 1") == [
        Row(_value="plain"),
        Row(_value="text"),
    ]


def test_an_empty_topic_is_an_empty_table(
    spark: SparkSession, broker: EmbeddedBroker, topics: Topics, topic: str
) -> None:
    topics.create(topic)
    assert _ask(spark, broker, topic, "SELECT count(*) AS n FROM TOPIC") == [Row(n=0)]


@pytest.mark.parametrize(
    ("query", "told"),
    [
        ("SELECT * FROM ordrs", "there is no topic 'ordrs'; did you mean orders?"),
        ("SELECT * FROM a.b", "write the name of topic 'a.b' in backticks: `a.b`"),
        ("SELEC 1", "Syntax error at or near 'SELEC'"),
        ("SELECT nothing FROM VALUES (1) AS t(one)", "Did you mean one of the following? [`one`]; line 1 pos 7"),
    ],
)
def test_what_is_wrong_with_a_query_is_told_in_one_line(spark: SparkSession, query: str, told: str) -> None:
    with pytest.raises(CommandError) as refused, query_errors(KNOWN):
        spark.sql(query).collect()
    assert told in str(refused.value)
    assert "\n" not in str(refused.value)


def _printed(
    result: DataFrame, how: Callable[[QueryResult], None], capfdbinary: pytest.CaptureFixture[bytes]
) -> list[str]:
    how(SparkResult(result, KNOWN))
    output.flush()
    return capfdbinary.readouterr().out.decode().splitlines()


def test_values_of_all_kinds_are_printed_as_a_table_as_json_and_as_csv(
    spark: SparkSession, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    result = spark.sql(
        """SELECT 1 AS n, CAST(NULL AS INT) AS none, 'a, "b"' AS text, 2.50 AS exact, double('nan') AS odd, true AS yes,
        array(1, 2) AS many, named_struct('x', 'y') AS pair, X'ff' AS raw, DATE'2024-05-01' AS day,
        TIMESTAMP_NTZ'2024-05-01 12:00:00.25' AS at"""
    )
    assert _printed(result, print_table, capfdbinary) == [
        "n  none  text    exact  odd  yes   many    pair        raw   day         at",
        '1     -  a, "b"   2.50  NaN  true  [1, 2]  {"x": "y"}  /w==  2024-05-01  2024-05-01 12:00:00.250',
    ]
    assert [json.loads(line) for line in _printed(result, print_json, capfdbinary)] == [
        {
            "n": 1, "none": None, "text": 'a, "b"', "exact": "2.50", "odd": "NaN", "yes": True, "many": [1, 2],
            "pair": {"x": "y"}, "raw": "/w==", "day": "2024-05-01", "at": "2024-05-01 12:00:00.250",
        }
    ]  # fmt: skip
    assert _printed(result, print_csv, capfdbinary) == [
        "n,none,text,exact,odd,yes,many,pair,raw,day,at",
        '1,,"a, ""b""",2.50,NaN,true,"[1, 2]","{""x"": ""y""}",/w==,2024-05-01,2024-05-01 12:00:00.250',
    ]


def test_a_name_that_two_columns_have_is_refused_in_json(spark: SparkSession) -> None:
    with pytest.raises(CommandError, match="two columns are named a"):
        print_json(SparkResult(spark.sql("SELECT 1 AS a, 2 AS a"), KNOWN))


def test_fields_that_differ_in_case_only_are_one_column_and_a_word(
    spark: SparkSession,
    broker: EmbeddedBroker,
    topics: Topics,
    topic: str,
    capfdbinary: pytest.CaptureFixture[bytes],
) -> None:
    topics.create(topic)
    topics.fill(topic, [b'{"id": 1}', b'{"ID": 2}'])
    # Given: what Spark infers has one or both of them, as the order of the records will have it.
    rows = _ask(spark, broker, topic, "SELECT id FROM TOPIC ORDER BY _offset", "ID INT, id INT")
    assert rows == [Row(id=1), Row(id=None)]
    # Spark's JVM may have words of its own there.
    word = f"Topic {topic}: fields that differ from a column only in case are found in _value only: ID."
    assert word in capfdbinary.readouterr().err.decode().splitlines()


def test_the_command_prints_json_lines(broker: EmbeddedBroker, orders: str) -> None:
    query = f"SELECT id, tags FROM `{orders}` WHERE id < 3 ORDER BY id"
    ran = skep("sql", query, "--json", "--master", "local[2]", "--bootstrap", broker.bootstrap_servers)
    assert (ran.returncode, ran.stderr) == (0, f"{STARTING}\n")
    assert [json.loads(line) for line in ran.stdout.splitlines()] == [{"id": 1, "tags": ["a"]}, {"id": 2, "tags": None}]


def test_the_command_prints_csv_of_the_fields_that_a_schema_gives(broker: EmbeddedBroker, orders: str) -> None:
    query = f"SELECT id, product, price FROM `{orders}` WHERE id IS NOT NULL ORDER BY id DESC"
    # Found in the values price would be a STRING: 21, and free.
    fields = f"{orders}=id INT, price DOUBLE, product STRING"
    ran = skep(
        "sql", query, "--schema", fields, "--csv", "--master", "local[2]", "--bootstrap", broker.bootstrap_servers
    )
    assert (ran.returncode, ran.stderr) == (0, f"{STARTING}\n")
    assert ran.stdout == "id,product,price\n5,eggs,\n2,hen,21.0\n1,eggs,0.5\n"


def test_a_query_is_parsed_before_topics_are_looked_at(
    spark: SparkSession, broker: EmbeddedBroker, orders: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(TopicTables, "ddl", lambda self, topic: asked.append(topic) or "")
    with pytest.raises(CommandError, match="Syntax error at or near"):
        _ask(spark, broker, orders, "SELECT * FRO TOPIC")
    assert asked == []
    _ask(spark, broker, orders, "SELECT 1 FROM TOPIC")
    assert asked == [orders]


def test_spark_agrees_with_what_is_refused_before_it_starts(spark: SparkSession) -> None:
    parser = spark._jsparkSession.sessionState().sqlParser()
    for query in RIGHT:
        parser.parsePlan(query)
    for query in WRONG:
        with pytest.raises(CommandError, match=r"Syntax error|[Cc]omment|end of input"), query_errors(KNOWN):
            parser.parsePlan(query)


def test_what_is_wrong_without_spark_is_told_before_it_starts(broker: EmbeddedBroker, orders: str) -> None:
    there, nowhere = ("--bootstrap", broker.bootstrap_servers), ("--bootstrap", "127.0.0.1:1")
    query = f"SELECT * FROM `{orders}`"
    for arguments, code, told in (
        (("SELECT 1", "--schema", "x=id INT", *there), 2, "--schema x=...: the query does not use topic 'x'"),
        ((query, "--schema", f"{orders}=id", *there), 2, "a type for the field id is missing at the end"),
        (("SELEC 1", *there), 1, "syntax error: no statement begins with SELEC; SELECT does"),
        ((f"SELECT (1 FROM `{orders}`", *there), 1, "syntax error: a ( is not closed"),
        ((f"SELECT * FROM `{orders}s`", *there), 1, f"there is no topic '{orders}s'"),
        ((query, *nowhere), 1, "no broker answers at 127.0.0.1:1 (is it running? start one with: skep serve)"),
    ):
        ran = skep("sql", *arguments)
        assert ran.returncode == code, ran.stderr
        assert told in ran.stderr
        assert (ran.stderr[:6], ran.stderr.count("\n")) == ("skep: ", 1), ran.stderr
