"""A message that counts only with PostgreSQL, by the program of docs/QUEUES.md, whose processes are killed."""

import json
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from confluent_kafka import Message
from confluent_kafka.admin import AdminClient, NewTopic

from skep.testing import EmbeddedBroker
from tests.scenario.held_history import Reader
from tests.scenario.postgresql_server import PostgresqlServer
from tests.scenario.purchase_program import AFTER, BEFORE, END, code_of_the_page
from tests.waiting import PATIENCE_S, wait_until

ROOT = Path(__file__).parents[2]
HALF = "purchases.half"


@pytest.fixture(scope="module")
def database() -> Iterator[PostgresqlServer]:
    with PostgresqlServer() as server, psycopg.connect(server.address, autocommit=True) as connection:
        connection.execute(code_of_the_page()["TABLES"])
        yield server


@pytest.fixture
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker() as started:
        admin = AdminClient({"bootstrap.servers": started.bootstrap_servers})
        half = NewTopic(HALF, 1, config={"skep.held.target": "purchases"})
        for created in admin.create_topics([NewTopic("purchases", 1), half, NewTopic("purchases.check", 1)]).values():
            created.result()
        yield started


class Programs:
    """Processes of the program. What still runs in the end is killed."""

    def __init__(self, broker: EmbeddedBroker, database: PostgresqlServer) -> None:
        self._where = {"bootstrap": broker.bootstrap_servers, "postgresql": database.address}
        self._started: list[subprocess.Popen[bytes]] = []

    def start(self, **given: str) -> "subprocess.Popen[bytes]":
        command = [sys.executable, "-m", "tests.scenario.purchase_program", json.dumps({**self._where, **given})]
        process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._started.append(process)
        return process

    def close(self) -> None:
        for process in self._started:
            process.kill()
            process.communicate()


@pytest.fixture
def programs(broker: EmbeddedBroker, database: PostgresqlServer) -> Iterator[Programs]:
    programs = Programs(broker, database)
    yield programs
    programs.close()


DEATHS: dict[str, str | None] = {
    "never counts 1": BEFORE,
    "never counts 2": BEFORE,
    "counts 1": AFTER,
    "counts 2": AFTER,
    "counts and says so": END,
    "lives": None,
}


def are_all_decided(held: list[Message], keys: int) -> bool:
    """A tombstone is written by the program that rolls back, or by the worker that has released the message."""
    return len({message.key() for message in held if message.value() is None}) == keys


def test_a_message_is_delivered_once_if_and_only_if_its_row_is_committed(
    broker: EmbeddedBroker, database: PostgresqlServer, programs: Programs
) -> None:
    """One program is slow: its transaction is open while it is asked about, and while the broker dies."""
    servers = broker.bootstrap_servers
    slow = programs.start(purchase="slow", waits_at=BEFORE)
    buying = {
        purchase: programs.start(purchase=purchase, **({"dies_at": death} if death else {}))
        for purchase, death in DEATHS.items()
    }
    for purchase, process in buying.items():
        assert process.wait(2 * PATIENCE_S) == (-signal.SIGKILL if DEATHS[purchase] else 0), purchase
    assert slow.stdout is not None
    assert slow.stdin is not None
    assert slow.stdout.readline() == b"waits\n"
    programs.start()
    broker.kill()
    broker.start()
    with psycopg.connect(database.address, autocommit=True) as connection:
        waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
        wait_until(lambda: connection.execute(waiting).fetchone() == (1,), "the question waits for the transaction")
        slow.stdin.write(b"go on\n")
        slow.stdin.flush()
        assert slow.wait(PATIENCE_S) == 0
        held, target = Reader(servers, HALF, 1), Reader(servers, "purchases", 1)
        held.until(lambda found: are_all_decided(found, len(DEATHS) + 1), "every message is decided")
        rows = [purchase for (purchase,) in connection.execute("SELECT id FROM purchases")]
    assert sorted(rows) == ["counts 1", "counts 2", "counts and says so", "lives", "slow"]
    target.until(lambda found: len(found) >= len(rows), "all that are committed are delivered")
    target.read_to_the_end()
    assert Counter(message.key().decode() for message in target.messages) == Counter(rows)
    held.close()
    target.close()
