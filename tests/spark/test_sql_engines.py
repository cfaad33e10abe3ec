"""The two engines of ``skep sql`` give the same results: one topic, one Spark session, a list of queries."""

import datetime
import json
import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import StructField, StructType

from skep.cli import output
from skep.cli.sql.duckdb_engine import DuckdbEngine
from skep.cli.sql.pipeline_tables import PipelineTables
from skep.cli.sql.query_result import print_csv, print_json, print_table
from skep.cli.sql.spark_engine import SparkEngine
from skep.cli.sql.table_catalog import TableCatalog
from skep.cli.sql.topic_tables import TopicTables
from skep.cli.sql.value_schema import inferred
from skep.client.archive.archiver import archive_topic
from skep.client.cluster_client import ClusterClient
from skep.testing import EmbeddedBroker
from tests.spark.conftest import Topics
from tests.unit.cli.sql.test_value_schema import INFERRED

pytestmark = pytest.mark.xdist_group("spark")

MOMENT = datetime.datetime(2024, 5, 1, 12, tzinfo=datetime.UTC)
FIRST_MS = 1_769_817_600_000  # 2026-01-31 in UTC
VALUES = [
    b'{"id": 1, "product": "eggs", "price": 0.5, "tags": ["a", "b"], "yard": {"x": 1, "y": "s"}, "fresh": true}',
    b'{"id": 2, "product": "hen", "price": 21, "big": 12345678901234567890, "odd": {"k": [1.50, "x"]}}',
    b"no json",
    None,
    b'{"id": 5, "product": "eggs", "price": 1e-7, "_offset": 77, "odd": 1.50, "tags": []}',
    b'{"id": 6, "product": null, "price": 3, "yard": {"x": null}, "odd": true, "empty": null}',
    b'{"id": 7, "product": "h\xc3\xa4n", "price": -2.25, "tags": [null], "odd": "text", "fresh": false}',
    b'{"id": 8, "product": "\xff", "odd": 1e8} rest',
    b'[{"id": 9, "listed": 1}]',
    b'{"id": 10, "product": ',
    b"",
]
QUERIES = [
    "SELECT * FROM T ORDER BY _offset",
    "SELECT product, count(*) AS n, sum(id) AS ids, avg(price) AS mean FROM T GROUP BY product ORDER BY product",
    "SELECT id, product FROM T ORDER BY product DESC, id DESC",
    "SELECT id, price FROM T WHERE price > 1 OR price IS NULL ORDER BY price, _offset",
    "SELECT yard.x AS x, yard.y AS y, yard FROM T WHERE yard IS NOT NULL ORDER BY id",
    "SELECT min(price) AS a, max(price) AS b, count(DISTINCT product) AS c, count(fresh) AS d FROM T",
    "SELECT a.id AS one, b.id AS other FROM T a JOIN T b ON a.product = b.product WHERE a.id < b.id ORDER BY 1, 2",
    "WITH e AS (SELECT * FROM T WHERE product = 'eggs') SELECT count(*) AS n, max(big) AS big FROM e",
    "SELECT id, row_number() OVER (PARTITION BY product ORDER BY id) AS r FROM T WHERE id IS NOT NULL ORDER BY id",
    "SELECT id, CASE WHEN price < 1 THEN 'low' ELSE 'high' END AS level FROM T WHERE id BETWEEN 1 AND 7 ORDER BY id",
    "SELECT upper(product) AS u, length(product) AS l, substring(product, 1, 2) AS s FROM T ORDER BY _offset",
    "SELECT DISTINCT fresh FROM T ORDER BY fresh",
    "SELECT coalesce(product, 'none') AS p, count(*) AS n FROM T GROUP BY 1 HAVING count(*) > 1 ORDER BY 1",
    "SELECT id, price * 2 AS twice, id % 2 AS odds, id / 2 AS half, -price AS minus FROM T ORDER BY _offset",
    "SELECT CAST(id AS STRING) AS text, CAST(price AS INT) AS whole FROM T WHERE price > 0.5 ORDER BY id",
    "SELECT id FROM T WHERE product LIKE 'h%' UNION ALL SELECT id FROM T WHERE id IN (1, 6) ORDER BY id",
    "SELECT date_trunc('HOUR', _timestamp) AS hour, count(*) AS n FROM T GROUP BY 1 ORDER BY 1",
    "SELECT year(_timestamp) AS y, CAST(_timestamp AS DATE) AS d FROM T ORDER BY _offset LIMIT 3",
    "SELECT _timestamp + INTERVAL 1 HOUR AS later FROM T WHERE _timestamp > TIMESTAMP '2026-01-31 02:00:00' ORDER BY 1",
    "SELECT count(*) AS n FROM T WHERE _timestamp < now() - INTERVAL 1 HOUR",
    "SELECT _key, _partition, _offset FROM T WHERE _value IS NULL OR _value = ''",
    "SELECT count(*) AS n FROM T WHERE EXISTS (SELECT 1 FROM T s WHERE s.id = 1) AND NOT coalesce(fresh, false)",
]  # fmt: skip
TYPED = (
    "id INT, price DECIMAL(10,2), product BINARY, fresh STRING, big DOUBLE, odd MAP<STRING, ARRAY<STRING>>, "
    "yard STRUCT<x: STRING, y: BIGINT>, tags ARRAY<STRING>, listed TIMESTAMP"
)
MOMENTS = [
    b'{"t": "2024-05-01T12:00:00+02:00", "n": "2024-05-01 12:00:00.25", "d": "2024-05", "a": [{"x": 1}, {"x": "s"}]}',
    b'{"t": 1714564800, "n": "2024-05-01T12:00:00Z", "d": "x", "a": {"x": 1}}',
]
AS_MOMENTS = "t TIMESTAMP, n TIMESTAMP_NTZ, d DATE, a ARRAY<STRUCT<x: BIGINT>>"


@pytest.fixture(autouse=True)
def utc() -> Iterator[None]:
    """As the command runs: rows of Spark have times of the process's zone."""
    before = os.environ.get("TZ")
    os.environ["TZ"] = "UTC"
    time.tzset()
    yield
    os.environ.pop("TZ") if before is None else os.environ.update(TZ=before)
    time.tzset()


class Engines:
    """Both engines over the same catalog."""

    def __init__(self, spark: SparkSession, catalog: TableCatalog, capture: pytest.CaptureFixture[bytes]) -> None:
        on_spark = SparkEngine(catalog, "")
        on_spark._session = spark
        self.both = (on_spark, DuckdbEngine(catalog))
        self._capture = capture

    def printed(self, query: str, how: Callable[[Any], None]) -> list[list[str]]:
        found = []
        for engine in self.both:
            how(engine.run(query))
            output.flush()
            found.append(self._capture.readouterr().out.decode().splitlines())
        return found


def test_queries_have_the_same_results(
    spark: SparkSession, broker: EmbeddedBroker, topics: Topics, topic: str, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    topics.create(topic, 2)
    topics.fill(topic, VALUES, timestamp_ms=lambda index: FIRST_MS + index * 1_800_000 + index)
    catalog = TableCatalog(TopicTables(broker.bootstrap_servers))
    engines = Engines(spark, catalog, capfdbinary)
    different = {}
    for query in QUERIES:
        on_spark, on_duckdb = engines.printed(re.sub(r"\bT\b", f"`{topic}`", query), print_json)
        assert on_spark, query
        if list(map(json.loads, on_spark)) != list(map(json.loads, on_duckdb)):
            different[query] = (on_spark, on_duckdb)
    assert different == {}
    everything = f"SELECT * FROM `{topic}` ORDER BY _offset"
    for how in (print_table, print_csv):
        on_spark, on_duckdb = engines.printed(everything, how)
        assert on_spark == on_duckdb

    typed = TableCatalog(TopicTables(broker.bootstrap_servers, {topic: TYPED}))
    on_spark, on_duckdb = Engines(spark, typed, capfdbinary).printed(everything, print_json)
    assert on_spark == on_duckdb


def test_moments_are_the_same(
    spark: SparkSession, broker: EmbeddedBroker, topics: Topics, topic: str, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    topics.create(topic)
    topics.fill(topic, MOMENTS)
    catalog = TableCatalog(TopicTables(broker.bootstrap_servers, {topic: AS_MOMENTS}))
    on_spark, on_duckdb = Engines(spark, catalog, capfdbinary).printed(
        f"SELECT t, n, d, a FROM `{topic}` ORDER BY _offset", print_json
    )
    assert on_spark == on_duckdb


def test_fields_are_inferred_as_spark_infers_them(spark: SparkSession) -> None:
    different = {}
    for values, _ in INFERRED:
        strings = spark._jsparkSession.createDataset(values, spark._jvm.org.apache.spark.sql.Encoders.STRING())
        found = StructType.fromJson(json.loads(spark._jsparkSession.read().json(strings).schema().json()))
        wanted = [field for field in found if field.name != "_corrupt_record"]
        ddl = inferred(map(json.loads, values)).columns()
        got: list[StructField] = list(StructType.fromDDL(ddl)) if ddl else []
        if got != wanted:
            different[str(values)] = (wanted, got)
    assert different == {}


def test_the_archive_and_the_log_are_one_table_in_both(
    spark: SparkSession,
    broker: EmbeddedBroker,
    topics: Topics,
    topic: str,
    tmp_path: Path,
    capfdbinary: pytest.CaptureFixture[bytes],
) -> None:
    topics.create(topic, 2, {"retention.ms": "-1"})
    topics.fill(topic, range(100), partition=lambda index: index % 2)
    with ClusterClient(broker.bootstrap_servers) as cluster:
        archive_topic(cluster, topic, tmp_path)
    topics.fill(topic, range(100, 120), partition=lambda index: index % 2)
    topics.delete_records(topic, 0, 30)
    catalog = TableCatalog(TopicTables(broker.bootstrap_servers, {}, tmp_path))
    query = f"SELECT _partition, count(*) AS n, sum(CAST(_value AS INT)) AS s FROM `{topic}` GROUP BY 1 ORDER BY 1"
    on_spark, on_duckdb = Engines(spark, catalog, capfdbinary).printed(query, print_json)
    assert on_spark == on_duckdb
    assert [json.loads(line)["n"] for line in on_spark] == [60, 60]


def test_tables_of_a_pipeline_are_read_by_both(
    spark: SparkSession, broker: EmbeddedBroker, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    for day, row in enumerate(({"n": [1], "made": [MOMENT]}, {"n": [2], "made": [MOMENT], "new": ["x"]})):
        (tmp_path / f"day={day}").mkdir()
        pq.write_table(pa.table(row), tmp_path / f"day={day}" / "part-0.parquet")
    catalog = TableCatalog(TopicTables(broker.bootstrap_servers), PipelineTables({"daily": tmp_path}))
    query = "SELECT n, new, day, made FROM Daily ORDER BY n"
    on_spark, on_duckdb = Engines(spark, catalog, capfdbinary).printed(query, print_json)
    assert on_spark == on_duckdb
    assert json.loads(on_spark[1]) == {"n": 2, "new": "x", "day": 1, "made": "2024-05-01 12:00:00.000"}
