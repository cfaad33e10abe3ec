"""``skep sql --engine duckdb``: topics as tables, without Spark; the archive and the log as one table."""

import datetime
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from skep.base.ids import TopicPartition as BaseTopicPartition
from skep.cli.failures import CommandError
from skep.cli.spark.last_run import save_last_run, table_folder
from skep.cli.spark.pipeline_graph import SINK, TABLE, TOPIC, VIEW, Dataset, FlowGraph
from skep.cli.spark.pipeline_project import Project, load_project
from skep.cli.spark.pipeline_template import write_project
from skep.cli.sql import topic_tables
from skep.cli.sql.pipeline_tables import PipelineTables
from skep.cli.sql.table_catalog import TableCatalog
from skep.cli.sql.topic_tables import TopicTables
from skep.client.archive import archive_folder
from skep.client.cluster_client import ClusterClient
from skep.client.list_offsets import EARLIEST, list_offsets
from skep.testing import EmbeddedBroker
from tests.scenario.archive_topics import done, skep

ORDERS = [
    b'{"id": 1, "product": "eggs", "price": 0.5, "tags": ["a"], "yard": {"x": 1}}',
    b'{"id": 2, "product": "hen", "price": 21}',
    b"no json",
    None,
    b'{"id": 5, "product": "eggs", "price": "free", "_offset": 77}',
]
FIRST_MS = 1_769_817_600_000  # 2026-01-31 in UTC


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker() as running:
        yield running


@pytest.fixture(autouse=True)
def bootstrap(broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SKEP_BOOTSTRAP", broker.bootstrap_servers)


def fill(broker: EmbeddedBroker, topic: str, values: list[bytes | None], partitions: int = 1) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers, "log_level": 0})
    if topic not in admin.list_topics(timeout=30).topics:
        admin.create_topics([NewTopic(topic, partitions, 1, config={"retention.ms": "-1"})])[topic].result(30)
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "log_level": 0})
    for number, value in enumerate(values):
        producer.produce(topic, value, key=b"%d" % number, partition=number % partitions, timestamp=FIRST_MS + number)
    assert producer.flush(60) == 0


def delete(broker: EmbeddedBroker, topic: str, before: list[int]) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers, "log_level": 0})
    wanted = [TopicPartition(topic, partition, offset) for partition, offset in enumerate(before)]
    for gone in admin.delete_records(wanted).values():
        gone.result(30)


def ask(query: str, *options: object) -> list[dict[str, object]]:
    return [json.loads(line) for line in done("sql", query, "--engine", "duckdb", "--json", *options).splitlines()]


def refused(query: str, *options: object) -> str:
    result = skep("sql", query, "--engine", "duckdb", *options)
    assert isinstance(result.exception, CommandError), f"{result.output}{result.exception!r}"
    assert "\n" not in str(result.exception)
    return str(result.exception)


def test_a_topic_is_a_table(broker: EmbeddedBroker, topic: str) -> None:
    fill(broker, topic, ORDERS)
    assert done(
        "sql",
        f"SELECT id, price, tags, yard, _key, _timestamp FROM `{topic}` WHERE id < 5 ORDER BY id DESC",
        "-e",
        "duckdb",
    ).splitlines() == [
        "id  price  tags   yard      _key  _timestamp",
        " 2  21     -      -         1     2026-01-31 00:00:00.001",
        ' 1  0.5    ["a"]  {"x": 1}  0     2026-01-31 00:00:00.000',
    ]
    assert ask(f'SELECT product, count(*) AS n FROM "{topic}" GROUP BY product ORDER BY product') == [
        {"product": None, "n": 2},
        {"product": "eggs", "n": 2},
        {"product": "hen", "n": 1},
    ]
    assert ask(f"SELECT sum(id) AS s, max(yard.x) AS x FROM `{topic.upper()}`") == [{"s": 8, "x": 1}]


def test_a_given_schema_decides(broker: EmbeddedBroker, topic: str) -> None:
    fill(broker, topic, ORDERS)
    query = f"SELECT * EXCLUDE (_key, _value, _partition, _offset, _timestamp) FROM `{topic}` WHERE id >= 2 ORDER BY id"
    assert ask(query, "--schema", f"{topic}=id INT, price DOUBLE") == [
        {"id": 2, "price": 21.0},
        {"id": 5, "price": None},
    ]
    assert "use --engine spark" in refused(query, "--schema", f"{topic}=id VARIANT")
    assert "a type for the field id is missing" in refused(query, "--schema", f"{topic}=id")


def test_an_empty_topic_is_an_empty_table(broker: EmbeddedBroker, topic: str) -> None:
    fill(broker, topic, [])
    assert ask(f"SELECT count(*) AS n, count(_value) AS v FROM `{topic}`") == [{"n": 0, "v": 0}]


def test_bytes_that_are_no_text_are_replaced(broker: EmbeddedBroker, topic: str) -> None:
    fill(broker, topic, [b'{"a": "\xff"}'])
    assert ask(f"SELECT a, _value FROM `{topic}`") == [{"a": "\ufffd", "_value": '{"a": "\ufffd"}'}]


def test_open_and_aborted_transactions_are_not_read(broker: EmbeddedBroker, topic: str) -> None:
    fill(broker, topic, [b'{"n": 1}'])
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "transactional.id": topic, "log_level": 0})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, b'{"n": 10}')
    producer.abort_transaction(30)
    producer.begin_transaction()
    producer.produce(topic, b'{"n": 100}')
    producer.commit_transaction(30)
    producer.begin_transaction()
    producer.produce(topic, b'{"n": 1000}')
    producer.flush(30)
    assert ask(f"SELECT sum(n) AS n FROM `{topic}`") == [{"n": 101}]
    producer.abort_transaction(30)


def test_what_is_wrong_with_a_query_is_told_in_one_line(broker: EmbeddedBroker, topic: str) -> None:
    fill(broker, topic, ORDERS)
    assert refused("SELEC 1") == 'syntax error at or near "SELEC"'
    assert refused("SELECT 1; SELECT 2") == "expected one statement; type several in the prompt: skep sql"
    assert refused(f"SELECT * FROM `{topic}x`") == f"there is no topic '{topic}x'; did you mean {topic}?"
    assert "Candidate bindings" in refused(f"SELECT nothing FROM `{topic}`")
    assert "the query does not use topic" in refused("SELECT 1", "--schema", f"{topic}=id INT")
    assert refused("SELECT * FROM topics") != ""  # and not a variable of the program


def test_duckdb_that_is_missing_is_told_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "duckdb", None)
    told = refused("SELECT 1")
    assert told.startswith("--engine duckdb needs duckdb: pip install ")
    assert '[duckdb]"' in told


def test_the_archive_and_the_log_are_one_table(broker: EmbeddedBroker, topic: str, tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    fill(broker, topic, [b'{"n": %d}' % number for number in range(100)], partitions=2)
    done("archive", topic, "--to", lake)
    fill(broker, topic, [b'{"n": %d}' % number for number in range(100, 160)], partitions=2)
    # Of partition 0 the log and the archive overlap; of partition 1 the log begins where the archive ends.
    delete(broker, topic, [20, 50])
    query = (
        f"SELECT count(*) AS rows, count(DISTINCT n) AS values, sum(n) AS total, min(_offset) AS first FROM `{topic}`"
    )
    assert ask(query, "--archive", lake) == [{"rows": 160, "values": 160, "total": sum(range(160)), "first": 0}]
    assert ask(query) == [
        {"rows": 90, "values": 90, "total": sum(range(40, 160)) - sum(range(41, 100, 2)), "first": 20}
    ]


def test_records_that_retention_deletes_meanwhile_come_from_the_archive(
    broker: EmbeddedBroker, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = tmp_path / "lake"
    fill(broker, topic, [b'{"n": 1}'] * 50)
    done("archive", topic, "--to", lake)
    fill(broker, topic, [b'{"n": 1}'] * 10)
    delete(broker, topic, [20])

    def as_before(cluster: ClusterClient, wanted: dict[BaseTopicPartition, int], **options: Any) -> dict[Any, Any]:
        """The log start as it was before the records were deleted."""
        found = list_offsets(cluster, wanted, **options)
        return {one: 0 if wanted[one] == EARLIEST else offset for one, offset in found.items()}

    monkeypatch.setattr(topic_tables, "list_offsets", as_before)
    query = f"SELECT count(*) AS n, count(DISTINCT _offset) AS offsets FROM `{topic}`"
    assert ask(query, "--archive", lake) == [{"n": 60, "offsets": 60}]
    assert refused(query) == (
        f"retention deleted offsets 0 to 19 of partition {topic}-0 while they were read; run the query again"
    )


def test_records_that_are_nowhere_are_told(broker: EmbeddedBroker, topic: str, tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    fill(broker, topic, [b'{"n": 1}'] * 10)
    done("archive", topic, "--to", lake)
    fill(broker, topic, [b'{"n": 1}'] * 10)
    delete(broker, topic, [15])
    query = f"SELECT count(*) FROM `{topic}`"
    told = refused(query, "--archive", lake)
    assert told.startswith(
        f"{topic}-0: offsets 10 to 14 are neither in its log, which begins at 15, nor in the archive"
    )
    assert "there is no archive in this folder" in refused(query, "--archive", tmp_path)


def test_a_missing_file_of_an_archive_is_told(broker: EmbeddedBroker, topic: str, tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    fill(broker, topic, [b'{"n": 1}'] * 10)
    done("archive", topic, "--to", lake)
    delete(broker, topic, [5])
    for file in archive_folder.list_files(lake / f"topic={topic}"):
        Path(file.path).unlink()
    assert "has 0 of the 1 files" in refused(f"SELECT count(*) FROM `{topic}`", "--archive", lake)


def _table(project: Project, name: str, rows: pa.Table, file: str = "part-0.parquet") -> None:
    folder = table_folder(project, name)
    assert folder is not None
    (folder / file).parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(rows, folder / file, use_deprecated_int96_timestamps=True)  # as Spark writes them


@pytest.fixture
def project(broker: EmbeddedBroker, tmp_path: Path) -> Project:
    """The example after a run, as far as its files go."""
    loaded = load_project(write_project(tmp_path / "shop", broker.bootstrap_servers), {})
    _table(loaded, "revenue", pa.table({"product": ["eggs", "hen"], "total": [7.5, 21.0]}))
    made = pa.array([datetime.datetime(2024, 5, 1, 12)], pa.timestamp("ns"))
    _table(loaded, "daily", pa.table({"n": [1], "made": made}), "day=1/part-0.parquet")
    _table(loaded, "daily", pa.table({"n": [2], "new": ["x"]}), "day=2/part-0.parquet")
    graph = FlowGraph()
    graph.add(Dataset("parsed", VIEW))
    graph.add_flow("parsed", "parsed", [Dataset("orders", TOPIC)])
    graph.add(Dataset("bad_orders", SINK, "orders.bad"))
    graph.add_flow("to_bad", "bad_orders", [Dataset("parsed", TABLE)])
    graph.add_flow("revenue", "revenue", [Dataset("parsed", TABLE)])
    graph.add_flow("daily", "daily", [Dataset("parsed", TABLE)])
    save_last_run(loaded, graph.complete(), [], "done")
    return loaded


def test_tables_and_topics_of_a_pipeline_are_tables(
    broker: EmbeddedBroker, project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SKEP_BOOTSTRAP")  # the project has the address
    fill(broker, "orders.bad", [b'{"reason": "no product"}'])
    shop = ("--pipeline", project.folder)
    assert ask("SELECT * FROM revenue ORDER BY total DESC", *shop) == [
        {"product": "hen", "total": 21.0},
        {"product": "eggs", "total": 7.5},
    ]
    assert ask("SELECT r.product, b.reason FROM revenue r, bad_orders b WHERE r.total < 10", *shop) == [
        {"product": "eggs", "reason": "no product"}
    ]
    assert ask("SELECT count(*) AS n FROM `orders.bad`", *shop) == [{"n": 1}]
    # A table with a partition column, which got another column later.
    assert ask("SELECT n, day, new FROM daily ORDER BY n", *shop) == [
        {"n": 1, "day": 1, "new": None},
        {"n": 2, "day": 2, "new": "x"},
    ]
    assert TableCatalog(TopicTables(broker.bootstrap_servers), PipelineTables.load(project.folder)).described(
        "daily"
    ) == [("n", "BIGINT"), ("made", "TIMESTAMP"), ("day", "INT"), ("new", "STRING")]
    assert ask("SELECT made FROM daily WHERE made > TIMESTAMP '2024-05-01 11:00:00'", *shop) == [
        {"made": "2024-05-01 12:00:00.000"}
    ]
    assert refused("SELECT * FROM revenu", *shop) == "there is no table or topic 'revenu'; did you mean revenue?"
    assert "there is no table or topic 'parsed'" in refused("SELECT * FROM parsed", *shop)


def test_a_folder_without_a_pipeline_is_refused(tmp_path: Path) -> None:
    assert "has no spark-pipeline.yml" in refused("SELECT 1", "--pipeline", tmp_path)


def test_a_pipeline_that_was_never_run_has_topics_only(broker: EmbeddedBroker, tmp_path: Path) -> None:
    folder = write_project(tmp_path / "shop", broker.bootstrap_servers)
    result = skep("sql", "SELECT 1 AS one", "-e", "duckdb", "--pipeline", folder)
    assert (result.exit_code, result.stdout) == (0, "one\n  1\n")
    assert f"has no tables yet; to run it: skep pipeline run {folder}" in result.stderr
