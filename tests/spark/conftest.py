"""What the Spark tests share: one session for each test process, a broker for each module, topics to read.

A session takes many seconds to start, so there is one for all tests of a process; xdist keeps modules with
``pytestmark = pytest.mark.xdist_group("spark")`` in one process (``--dist loadgroup``). Modules that use another Spark
are groups of their own, beside it: two processes of tests are two Sparks at a time, of some 2 GB each.
"""

import os
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import DataFrame, SparkSession

from skep.cli.spark.spark_driver import workers_python
from skep.testing import EmbeddedBroker
from tests.spark.pipelining import SHORT_LIVED_JAVA

SOURCE = Path(__file__).parents[2] / "src"


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session whose Python workers run this interpreter and can import both packages from the source tree."""
    before = {name: os.environ.get(name) for name in ("PYTHONPATH", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON")}
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(SOURCE), before["PYTHONPATH"]]))
    # As `skep pipeline` starts them: three times as quick, and a query starts many.
    python = workers_python(tmp_path_factory.mktemp("workers") / "spark.log")
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = python
    session = (
        # Two cores, and each task may fail three times: some tests let tasks fail.
        SparkSession.builder.master("local[2,4]")
        .appName("skep-tests")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.warehouse.dir", str(tmp_path_factory.mktemp("warehouse")))
        .config("spark.driver.extraJavaOptions", SHORT_LIVED_JAVA)
        # Other tests run meanwhile: a Python worker that comes late is not lost.
        .config("spark.python.authenticate.socketTimeout", "60s")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.streaming.noDataProgressEventInterval", "100")
        .config("spark.sql.streaming.stopTimeout", "60000")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()
    for name, value in before.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    """Retention by time is off, for records of tests are of any time; by size it comes at once."""
    options = {"log.retention.check.interval.ms": "100", "log.retention.ms": "-1"}
    with EmbeddedBroker(options=options) as broker:
        yield broker


@pytest.fixture
def topic() -> str:
    """A name that no other test uses; the topic itself is the test's to create."""
    return f"topic-{uuid.uuid4().hex[:8]}"


class Topics:
    """Creates topics and fills them, with librdkafka: what is read is not written by the code under test."""

    def __init__(self, bootstrap: str) -> None:
        quiet = {"bootstrap.servers": bootstrap, "log_level": 0}
        self.bootstrap = bootstrap
        self.admin = AdminClient(quiet)
        self._producer = Producer(quiet)

    def create(self, name: str, partitions: int = 1, configs: Mapping[str, str] | None = None) -> str:
        [made] = self.admin.create_topics([NewTopic(name, partitions, 1, config=dict(configs or {}))]).values()
        made.result(30)
        return name

    def delete(self, name: str) -> None:
        [gone] = self.admin.delete_topics([name]).values()
        gone.result(30)

    def delete_records(self, name: str, partition: int, before: int) -> None:
        [gone] = self.admin.delete_records([TopicPartition(name, partition, before)]).values()
        gone.result(30)

    def fill(
        self,
        name: str,
        values: Sequence[bytes | None] | range,
        *,
        partition: int | Callable[[int], int] = 0,
        timestamp_ms: Callable[[int], int] = lambda index: 0,
    ) -> None:
        """One record for each value, of a number its digits; the key is the index."""
        for index, value in enumerate(values):
            self._producer.produce(
                name,
                b"%d" % value if isinstance(value, int) else value,
                key=b"%d" % index,
                partition=partition(index) if callable(partition) else partition,
                timestamp=timestamp_ms(index),
            )
        assert self._producer.flush(60) == 0


@pytest.fixture
def topics(broker: EmbeddedBroker) -> Topics:
    return Topics(broker.bootstrap_servers)


@pytest.fixture
def read(spark: SparkSession, broker: EmbeddedBroker) -> Callable[..., DataFrame]:
    """``read(topic, startingOffsets="earliest")``: a batch read; ``stream=True`` gives a stream."""

    def load(topic: str | None = None, *, stream: bool = False, **options: str) -> DataFrame:
        reader = spark.readStream if stream else spark.read
        given = {"kafka.bootstrap.servers": broker.bootstrap_servers, **options}
        if topic is not None:
            given["subscribe"] = topic
        return reader.format("skep").options(**given).load()

    return load
