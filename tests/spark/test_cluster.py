"""A real cluster, a master and two workers: whatever is killed in the middle, the result is exact."""

import json
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path

import pytest

from skep.client.cluster_client import ClusterClient
from skep.client.produce.transactions import list_open_transactions
from skep.testing import EmbeddedBroker
from tests.spark.cluster import SETTINGS, SOURCE, StandaloneCluster, kill, zipped_packages
from tests.spark.cluster_pipeline import PATIENCE_S, ClusterPipeline, create, ends, fill
from tests.spark.driver_model import committed_rows
from tests.spark.pipelining import ROOT, records, table
from tests.waiting import wait_until

# One cluster for all of them, which need not wait for the tests of the shared session.
pytestmark = [pytest.mark.xdist_group("spark-cluster"), pytest.mark.timeout(900)]

ROWS_OF_A_TEST = 300
QUERY = str(Path(__file__).with_name("cluster_query.py"))


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker() as broker:
        yield broker


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneCluster]:
    with StandaloneCluster(tmp_path_factory.mktemp("cluster"), workers=2) as cluster:
        yield cluster


@pytest.fixture
def cluster(machines: StandaloneCluster) -> StandaloneCluster:
    """With all its workers, whatever the test before has killed."""
    machines.complete()
    return machines


class CopyingQuery:
    """The query of ``cluster_query``, the rows that were given to it, and its driver, which can be killed."""

    def __init__(self, cluster: StandaloneCluster, broker: EmbeddedBroker, directory: Path) -> None:
        self._cluster, self._broker = cluster, broker
        self._checkpoint = str(directory / "checkpoint")
        self._log = directory / "driver.log"
        self._rows: list[str] = []
        create(broker, "input", "output")
        self.start()

    def start(self) -> None:
        program = (QUERY, self._broker.bootstrap_servers, "input", "output", self._checkpoint)
        # Spark hands the driver's PYTHONPATH on to the Python of the executors.
        self.driver = self._cluster.submit(self._log, *program, PYTHONPATH=str(SOURCE))

    def feed(self) -> None:
        """Rows for several epochs. Returns in the middle of one of them: some of its tasks have written their rows."""
        done = ends(self._broker, "output", committed=True)
        first = len(self._rows)
        rows = [f"row-{number}" for number in range(first, first + ROWS_OF_A_TEST)]
        fill(self._broker, "input", rows)
        self._rows += rows
        # Not the first epoch, of which executors still have their Python to start.
        self._wait(lambda: ends(self._broker, "output", committed=True) > done, "an epoch is done")
        self._wait(self._is_in_an_epoch, "an epoch is under way")
        assert ends(self._broker, "output", committed=True) < done + ROWS_OF_A_TEST, "all is done before anything died"

    def _is_in_an_epoch(self) -> bool:
        return ends(self._broker, "output", committed=True) < ends(self._broker, "output", committed=False)

    def check(self) -> None:
        """Waits for the last row, and each is there once."""
        self._wait(lambda: len(self._found()) >= len(self._rows), "the query comes to the end of its input")
        assert self._found() == Counter(self._rows)

    def _found(self) -> "Counter[str]":
        return committed_rows(self._broker.bootstrap_servers, "output")

    def _wait(self, condition: Callable[[], bool], what: str) -> None:
        def ready() -> bool:
            assert self.driver.poll() is None, f"the query ended: {self._log.read_text()[-3000:]}"
            return condition()

        wait_until(ready, lambda: f"{what}: {self._log.read_text()[-3000:]}", PATIENCE_S)


@pytest.fixture(scope="class")
def running(
    machines: StandaloneCluster, broker: EmbeddedBroker, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[CopyingQuery]:
    """One query for all tests of a class: a driver takes long to start."""
    query = CopyingQuery(machines, broker, tmp_path_factory.mktemp("query"))
    try:
        yield query
    finally:
        kill(query.driver)


@pytest.fixture
def query(running: CopyingQuery, cluster: StandaloneCluster) -> CopyingQuery:
    """On both workers."""
    wait_until(lambda: cluster.busy_workers() == 2, "the query has an executor on each worker", PATIENCE_S)
    return running


class TestAQueryFromTopicToTopic:
    def test_a_worker_that_is_killed_with_its_executor_costs_no_row(
        self, cluster: StandaloneCluster, query: CopyingQuery
    ) -> None:
        query.feed()
        cluster.kill_worker()
        query.check()

    def test_a_broker_that_is_killed_and_restarted_costs_no_row(
        self, broker: EmbeddedBroker, query: CopyingQuery
    ) -> None:
        query.feed()
        broker.kill()
        broker.restart()
        query.check()

    def test_a_driver_that_is_killed_goes_on_from_its_checkpoint(
        self, broker: EmbeddedBroker, query: CopyingQuery
    ) -> None:
        query.feed()
        kill(query.driver)
        query.start()
        query.check()
        with ClusterClient(broker.bootstrap_servers) as client:
            wait_until(lambda: list_open_transactions(client) == [], "no transaction is left open")


def test_packages_come_to_the_executors_with_py_files(
    cluster: StandaloneCluster, broker: EmbeddedBroker, tmp_path: Path
) -> None:
    create(broker, "packed", "unpacked")
    rows = [f"row-{number}" for number in range(50)]
    fill(broker, "packed", rows)
    # A relative path: there is something at the driver, and nothing where the executors run.
    (tmp_path / "installed").symlink_to(SOURCE)
    driver = cluster.submit(
        tmp_path / "driver.log",
        *(QUERY, "--registered", "--to-the-end"),
        *(broker.bootstrap_servers, "packed", "unpacked", str(tmp_path / "checkpoint")),
        options=(
            *("--py-files", str(zipped_packages(tmp_path / "skep.zip"))),
            *("--conf", "spark.cores.max=1"),
            *("--conf", f"spark.executorEnv.XDG_CACHE_HOME={tmp_path / 'compiled'}"),
        ),
        PYTHONPATH="installed",
    )
    try:
        assert driver.wait(PATIENCE_S) == 0, (tmp_path / "driver.log").read_text()[-3000:]
    finally:
        kill(driver)
    assert committed_rows(broker.bootstrap_servers, "unpacked") == Counter(rows)


def order(number: int) -> str:
    """Every tenth is one that nobody can sell."""
    product = "eggs" if number % 10 else "goose"
    return json.dumps({"id": number, "product": product, "quantity": 1 + number % 3})


def test_a_pipeline_runs_on_the_cluster_and_a_worker_and_a_broker_that_are_killed_change_nothing(
    cluster: StandaloneCluster, broker: EmbeddedBroker, tmp_path: Path
) -> None:
    project = Path(shutil.copytree(ROOT / "pipelines" / "enrichment", tmp_path / "enrichment"))
    definition = project / "transformations" / "orders.py"
    text = definition.read_text()
    # In several epochs, so that there is a middle.
    limited = text.replace('"earliest")', '"earliest").option("maxOffsetsPerTrigger", 150)')
    assert limited != text
    definition.write_text(limited)
    create(broker, "orders", "orders.bad", "sales")
    fill(broker, "orders", [order(number) for number in range(600)])
    # No metastore of its own: it would take as long to start as Spark itself.
    given = {**SETTINGS, "spark.sql.catalogImplementation": "in-memory"}
    settings = [word for name, value in given.items() for word in ("--conf", f"{name}={value}")]
    command = ["pipeline", "run", str(project), "--master", cluster.url, "-b", broker.bootstrap_servers, *settings]
    log = tmp_path / "run.log"
    with log.open("wb") as output:
        run = subprocess.Popen(
            [sys.executable, "-m", "skep.cli.main", *command],
            env={**cluster.environment, "PYTHONPATH": str(SOURCE)},
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        wait_until(
            lambda: run.poll() is not None or ends(broker, "orders.bad", committed=False) > 0,
            lambda: f"the pipeline writes: {log.read_text()}",
            PATIENCE_S,
        )
        assert run.poll() is None, log.read_text()
        assert cluster.busy_workers() == 2
        cluster.kill_worker()
        broker.kill()
        broker.restart()
        assert run.wait(PATIENCE_S) == 0, log.read_text()
    finally:
        kill(run)
    sold = [number for number in range(600) if number % 10]
    amount = sum(1 + number % 3 for number in sold)
    assert table(project, "revenue") == [("eggs", amount, amount * Decimal("4.20"))]
    in_topic = [json.loads(record.value or "") for record in records(broker.bootstrap_servers, "sales")]
    assert sorted(sale["id"] for sale in in_topic) == sold
    refused = records(broker.bootstrap_servers, "orders.bad")
    assert sorted(record.value or "" for record in refused) == sorted(order(number) for number in range(0, 600, 10))
    assert {record.headers["dlq.reason"] for record in refused} == {"no product 'goose'"}


@pytest.fixture
def pipeline(machines: StandaloneCluster, broker: EmbeddedBroker, tmp_path: Path) -> Iterator[ClusterPipeline]:
    pipeline = ClusterPipeline(machines, broker, tmp_path)
    yield pipeline
    pipeline.kill()


@pytest.mark.usefixtures("cluster")
def test_a_command_that_is_killed_goes_on_from_its_checkpoints_when_run_again(
    broker: EmbeddedBroker, pipeline: ClusterPipeline
) -> None:
    pipeline.run_to_the_middle()
    pipeline.kill()
    pipeline.start()
    pipeline.wait_for_the_end()
    assert pipeline.made() == pipeline.wanted()
    with ClusterClient(broker.bootstrap_servers) as client:
        wait_until(lambda: list_open_transactions(client) == [], "no transaction is left open")
