"""A stream that is killed again and again while it writes, with brokers that restart: each row is there once."""

import contextlib
import os
import random
import select
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from skep.cli.spark.spark_driver import workers_python
from skep.client.admin import create_topic
from skep.client.cluster_client import ClusterClient
from skep.client.produce.transactions import list_open_transactions
from skep.testing import EmbeddedBroker
from tests.lengths import times
from tests.spark.driver_model import PARTITIONS, committed_rows
from tests.spark.pipelining import environment

pytestmark = [pytest.mark.long, pytest.mark.timeout(1500)]

ROOT = Path(__file__).parents[2]
KILLS = times(1, long=20)
ROWS = 480 * (KILLS + 1)
"""Eight epochs for each run, of which it gets to the end of some four."""
PATIENCE_S = 400.0


class CopyingQuery:
    """The program of ``copying_query``, with all processes that it starts."""

    def __init__(self, python: str, *arguments: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.spark.copying_query", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            cwd=ROOT,
            env={**environment(), "PYSPARK_PYTHON": python, "PYSPARK_DRIVER_PYTHON": python},
        )
        assert self._process.stdout is not None
        self._output = self._process.stdout
        os.set_blocking(self._output.fileno(), False)
        self._seen = b""

    def wait_for(self, word: bytes, times: int = 1) -> bool:
        """Whether it printed the word so many times; False when it has ended before."""
        deadline = time.monotonic() + PATIENCE_S
        while self._seen.count(word) < times:
            assert time.monotonic() < deadline, f"the query prints nothing: {self._seen!r}"
            if select.select([self._output], [], [], 1.0)[0]:
                piece = self._output.read()
                if piece == b"":
                    return False
                self._seen += piece or b""
        return True

    def kill(self) -> None:
        """``kill -9`` of Python, the JVM and the workers at once."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._output.close()

    def ended_well(self) -> bool:
        self.wait_for(b"never printed")
        self._output.close()
        return self._process.wait(PATIENCE_S) == 0


@pytest.fixture
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker() as broker:
        yield broker


def test_each_row_is_there_once_after_many_kills_of_the_driver_and_the_broker(
    broker: EmbeddedBroker, tmp_path: Path
) -> None:
    chance = random.Random(7)
    rows = [f"row-{number}" for number in range(ROWS)]
    with ClusterClient(broker.bootstrap_servers) as cluster:
        for topic in ("input", "output"):
            create_topic(cluster, topic, PARTITIONS, {})
    fill(broker.bootstrap_servers, "input", rows)
    # As the shared session starts them: most of the time of this test is Spark's starting.
    python = workers_python(tmp_path / "workers.log")
    kills = 0
    while True:
        tasks = str(1 + kills % 4)  # the epoch that is replayed is cut in another way
        query = CopyingQuery(python, broker.bootstrap_servers, "input", "output", str(tmp_path / "checkpoint"), tasks)
        try:
            if kills == KILLS:
                killer = threading.Timer(chance.uniform(8, 12), restart, [broker])
                killer.start()
                done = query.ended_well()
                killer.join()
                assert done, "the last run failed"
                break
            if kills % 2 == 1 and query.wait_for(b"started"):
                time.sleep(chance.uniform(0, 1))
                restart(broker)
            if not query.wait_for(b"epoch", chance.randint(1, 2)):
                break
            # Somewhere in an epoch: reading, writing, deciding, ending transactions.
            time.sleep(chance.uniform(0, 1.5))
        finally:
            query.kill()
        kills += 1
    assert committed_rows(broker.bootstrap_servers, "output") == Counter(rows)
    assert kills == KILLS, "the query came to its end too early for the test to mean anything"
    with ClusterClient(broker.bootstrap_servers) as cluster:
        assert list_open_transactions(cluster) == []


def restart(broker: EmbeddedBroker) -> None:
    broker.kill()
    broker.restart()


def fill(bootstrap: str, topic: str, rows: list[str]) -> None:
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": bootstrap})
    for row in rows:
        producer.produce(topic, row.encode(), row.encode())
    assert producer.flush(30) == 0
