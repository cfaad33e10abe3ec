"""A pipeline on a standalone cluster, for tests that kill something in the middle of a run.

It is the project that ``skep pipeline init`` writes, and one for several tests: each feeds it more orders and runs it
again, so its tables and checkpoints are those of the tests before.
"""

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from confluent_kafka import Producer

from skep.cli.spark.pipeline_template import write_project
from skep.client.admin import create_topic
from skep.client.cluster_client import ClusterClient
from skep.client.list_offsets import LATEST, list_offsets
from skep.testing import EmbeddedBroker
from tests.spark.cluster import SETTINGS, SOURCE, StandaloneCluster, kill
from tests.spark.driver_model import PARTITIONS
from tests.spark.pipelining import records, table
from tests.waiting import wait_until

PATIENCE_S = 400.0
ORDERS_OF_A_TEST = 400
ORDERS_OF_AN_EPOCH = 100
PRICE = 50
SOURCE_TOPIC, BAD_TOPIC, LARGE_TOPIC = "shop.orders", "shop.bad", "shop.large"


def fill(broker: EmbeddedBroker, topic: str, values: list[str]) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "log_level": 0})
    for value in values:
        producer.produce(topic, value.encode(), value.encode())
    assert producer.flush(60) == 0


def ends(broker: EmbeddedBroker, topic: str, *, committed: bool) -> int:
    """How far the partitions of a topic go, taken together."""
    with ClusterClient(broker.bootstrap_servers) as client:
        wanted = {(topic, partition): LATEST for partition in range(PARTITIONS)}
        return sum(end or 0 for end in list_offsets(client, wanted, committed=committed).values())


def create(broker: EmbeddedBroker, *topics: str) -> None:
    with ClusterClient(broker.bootstrap_servers) as client:
        for topic in topics:
            create_topic(client, topic, PARTITIONS, {})


def order(number: int) -> str:
    """Every tenth is none."""
    if number % 10 == 0:
        return f"not an order: {number}"
    return json.dumps({"id": number, "product": "eggs", "quantity": quantity(number), "price": PRICE})


def quantity(number: int) -> int:
    return 1 + number % 3


class ClusterPipeline:
    """The project, the orders that it was given, and the command that runs it, which can be killed."""

    def __init__(self, cluster: StandaloneCluster, broker: EmbeddedBroker, directory: Path) -> None:
        self._cluster, self._broker = cluster, broker
        self._project = _adapted(write_project(directory / "shop", broker.bootstrap_servers))
        self._log = directory / "run.log"
        self._orders = 0
        self.run: subprocess.Popen[bytes] | None = None
        create(broker, SOURCE_TOPIC, BAD_TOPIC, LARGE_TOPIC)

    def start(self) -> None:
        settings = [word for name, value in SETTINGS.items() for word in ("--conf", f"{name}={value}")]
        command = ["pipeline", "run", str(self._project), "--master", self._cluster.url, *settings]
        with self._log.open("ab") as output:
            self.run = subprocess.Popen(
                [sys.executable, "-m", "skep.cli.main", *command],
                cwd=self._log.parent,  # Java leaves its logs there
                env={**self._cluster.environment, "PYTHONPATH": str(SOURCE)},
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def run_to_the_middle(self) -> None:
        """Feeds orders for several epochs and runs. Returns when one is done and the next has written dead letters."""
        done = ends(self._broker, BAD_TOPIC, committed=True)
        numbers = range(self._orders, self._orders + ORDERS_OF_A_TEST)
        fill(self._broker, SOURCE_TOPIC, [order(number) for number in numbers])
        self._orders = numbers.stop
        self.start()
        self._wait(lambda: ends(self._broker, BAD_TOPIC, committed=True) > done, "an epoch is done")
        self._wait(self._is_in_an_epoch, "an epoch is under way")

    def _is_in_an_epoch(self) -> bool:
        return ends(self._broker, BAD_TOPIC, committed=True) < ends(self._broker, BAD_TOPIC, committed=False)

    def _wait(self, condition: Callable[[], bool], what: str) -> None:
        def ready() -> bool:
            assert self.run is not None
            assert self.run.poll() is None, f"the run ended: {self._words()}"
            return condition()

        wait_until(ready, lambda: f"{what}: {self._words()}", PATIENCE_S)

    def _words(self) -> str:
        return self._log.read_text()[-3000:]

    def wait_for_the_end(self) -> None:
        assert self.run is not None
        assert self.run.wait(PATIENCE_S) == 0, self._words()

    def kill(self) -> None:
        """The command, and the Java that is Spark's driver."""
        if self.run is not None:
            kill(self.run)

    # What there is after a run, and what there has to be.

    def made(self) -> "tuple[list[tuple[object, ...]], Counter[int], Counter[str | None]]":
        """The revenue, the ids of the large orders and the dead letters."""
        large = [json.loads(record.value or "") for record in records(self._broker.bootstrap_servers, LARGE_TOPIC)]
        bad = records(self._broker.bootstrap_servers, BAD_TOPIC)
        return (
            table(self._project, "revenue"),
            Counter(one["id"] for one in large),
            Counter(record.value for record in bad),
        )

    def wanted(self) -> "tuple[list[tuple[object, ...]], Counter[int], Counter[str | None]]":
        good = [number for number in range(self._orders) if number % 10]
        revenue = [("eggs", len(good), float(sum(quantity(number) * PRICE for number in good)))]
        large = Counter(number for number in good if quantity(number) * PRICE >= 100)
        return revenue, large, Counter(order(number) for number in range(0, self._orders, 10))


def _adapted(project: Path) -> Path:
    """With topics of its own, and in several epochs, so that there is a middle."""
    definition = project / "transformations" / "orders.py"
    text = definition.read_text()
    for old, new in (
        ('"subscribe", "orders"', f'"subscribe", "{SOURCE_TOPIC}"'),
        ('"orders.bad"', f'"{BAD_TOPIC}"'),
        ('"orders.large"', f'"{LARGE_TOPIC}"'),
        ('"earliest")', f'"earliest").option("maxOffsetsPerTrigger", {ORDERS_OF_AN_EPOCH})'),
    ):
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    definition.write_text(text)
    return project
