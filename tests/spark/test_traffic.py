"""What queries of Spark cost the broker, counted on the way: bytes that filters save, connections that are kept."""

from collections import Counter
from collections.abc import Iterator

import psutil
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from skep.testing import EmbeddedBroker
from tests.spark.conftest import Topics
from tests.spark.counting_proxy import CountingProxy
from tests.spark.test_read_batch import PUSH_DOWN

pytestmark = pytest.mark.xdist_group("spark")

ROWS, ROW_BYTES = 20_000, 200
FIRST_MS = 1_700_000_000_000
TASKS = 40


@pytest.fixture(scope="module")
def proxy() -> Iterator[CountingProxy]:
    with CountingProxy() as proxy:
        yield proxy


@pytest.fixture(scope="module")
def broker(proxy: CountingProxy) -> Iterator[EmbeddedBroker]:
    """One that tells its clients to come through the proxy."""
    options = {"advertised.listeners": proxy.address, "log.retention.ms": "-1"}
    broker = EmbeddedBroker(options=options)
    # Where it listens; from its start on it gives the other address.
    proxy.lead_to(broker.bootstrap_servers)
    with broker:
        yield broker


@pytest.fixture
def push_down(spark: SparkSession) -> Iterator[None]:
    spark.conf.set(PUSH_DOWN, "true")
    yield
    spark.conf.unset(PUSH_DOWN)


@pytest.fixture
def filled(topics: Topics, topic: str) -> str:
    """In two partitions by turns of 500 rows, which are batches of their own; a millisecond apart."""
    topics.create(topic, 2)
    for start in range(0, ROWS, 500):
        topics.fill(
            topic,
            [b"x" * ROW_BYTES] * 500,
            partition=start // 500 % 2,
            timestamp_ms=lambda index, start=start: FIRST_MS + start + index,
        )
    return topic


@pytest.mark.parametrize(
    ("condition", "rows", "share"),
    [
        ("partition = 1", ROWS // 2, 0.6),
        ("partition = 1 AND offset >= 500 AND offset < 1500", 1000, 0.2),
        (f"timestamp >= timestamp_millis({FIRST_MS + ROWS - 2000})", 2000, 0.2),
        ("topic = 'another'", 0, 0.01),
    ],
)
def test_filters_that_are_pushed_down_save_bytes_and_change_no_row(
    spark: SparkSession,
    proxy: CountingProxy,
    filled: str,
    push_down: None,
    condition: str,
    rows: int,
    share: float,
) -> None:
    def fetched(push: str) -> int:
        options = {"kafka.bootstrap.servers": proxy.address, "subscribe": filled, "pushFilters": push}
        table = spark.read.format("skep").options(**options, **{"kafka.fetch.max.bytes": "65536"}).load()
        proxy.counted()
        assert table.filter(condition).count() == rows
        return proxy.counted()[1]

    everything = fetched("false")
    assert everything > ROWS * ROW_BYTES
    assert fetched("true") < share * everything


def test_a_worker_keeps_its_connections_from_task_to_task(
    spark: SparkSession, proxy: CountingProxy, filled: str, topic: str
) -> None:
    # With a name that no query before had, so that none of their connections can be used.
    options = {"kafka.bootstrap.servers": proxy.address, "subscribe": filled, "kafka.client.id": topic}
    table = spark.read.format("skep").options(**options, minPartitions=str(TASKS)).load()
    before = open_connections(proxy)
    proxy.counted()
    assert table.groupBy(f.spark_partition_id()).count().count() == TASKS
    made, _ = proxy.counted()
    by_process = open_connections(proxy) - before
    assert set(by_process.values()) == {2}, "one for questions to anybody, one to the broker"
    assert made == by_process.total(), "none was closed and made again"
    assert len(by_process) < TASKS / 4, "Spark runs task after task in one process"


def open_connections(proxy: CountingProxy) -> "Counter[int]":
    """How many each process has to the broker, by the process id."""
    port = int(proxy.address.rpartition(":")[2])
    return Counter(
        row.pid for row in psutil.net_connections("tcp") if row.pid is not None and row.raddr and row.raddr.port == port
    )
