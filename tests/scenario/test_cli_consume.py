"""``skep consume`` and what must not surprise its user: transactions, a dead broker, Ctrl-C, side effects."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from uuid import uuid4

import pytest
from confluent_kafka import Producer
from typer.testing import CliRunner

from skep.cli.connection import Cluster
from skep.cli.main import app
from skep.cli.records.topic_reader import Place, Span, Start, spans
from skep.testing import EmbeddedBroker
from tests.waiting import wait_until

SKEP = [sys.executable, "-m", "skep.cli.main"]


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker() as running:
        yield running


@pytest.fixture
def topic() -> str:
    return f"topic-{uuid4().hex[:8]}"


def done(broker: EmbeddedBroker, *arguments: str, stdin: bytes | None = None) -> str:
    result = CliRunner().invoke(app, [*arguments, "-b", broker.bootstrap_servers], input=stdin)
    assert result.exit_code == 0, result.output
    return result.stdout


def producer_in_a_transaction(broker: EmbeddedBroker, topic: str) -> Producer:
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "transactional.id": topic, "log_level": 0})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, b"aborted")
    producer.flush(30)
    return producer


def test_looking_without_a_group_changes_nothing() -> None:
    with EmbeddedBroker() as fresh:
        done(fresh, "produce", "orders", stdin=b"one egg\n")
        assert done(fresh, "consume", "orders") == "one egg\n"
        assert done(fresh, "groups", "list") == ""
        assert [row["topic"] for row in json.loads(done(fresh, "topics", "list", "--internal", "--json"))] == ["orders"]


def test_records_of_aborted_transactions_are_printed_only_on_request(broker: EmbeddedBroker, topic: str) -> None:
    done(broker, "topics", "create", topic)
    producer = producer_in_a_transaction(broker, topic)
    producer.abort_transaction(30)
    done(broker, "produce", topic, stdin=b"counted\n")
    assert done(broker, "consume", topic).split() == ["counted"]
    assert done(broker, "consume", topic, "--isolation-level", "read_uncommitted").split() == ["aborted", "counted"]
    # The aborted record, its marker and the record.
    header, row = done(broker, "topics", "describe", topic).splitlines()[-2:]
    assert header.split()[-1] == "offsets"
    assert row.split()[-1] == "3"


def test_a_committed_reader_that_starts_at_the_end_starts_before_an_open_transaction(
    broker: EmbeddedBroker, topic: str
) -> None:
    done(broker, "topics", "create", topic)
    producer = producer_in_a_transaction(broker, topic)
    cluster = Cluster(broker.bootstrap_servers)
    at_end = Start(Place.END)
    assert spans(cluster, topic, [0], at_end, follow=True, committed=True) == {0: Span(0, None)}
    assert spans(cluster, topic, [0], at_end, follow=True) == {0: Span(1, None)}
    producer.abort_transaction(30)


def committed(broker: EmbeddedBroker) -> list[int]:
    [group] = json.loads(done(broker, "groups", "describe", "billing", "--json"))
    return [row["current"] for row in group["partitions"]]


@pytest.mark.parametrize("group", [[], ["--group", "billing"]], ids=["alone", "in a group"])
def test_a_follower_says_that_the_broker_is_gone_and_that_it_is_back(group: list[str]) -> None:
    with EmbeddedBroker() as dying:
        done(dying, "produce", "orders", stdin=b"before\n")
        with subprocess.Popen(
            [*SKEP, "consume", "orders", "-b", dying.bootstrap_servers, "--follow", "--from-beginning", *group],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        ) as following:
            try:
                assert following.stdout is not None
                assert following.stderr is not None
                assert following.stdout.readline() == b"before\n"
                dying.kill()
                lost = following.stderr.readline().decode()
                assert lost == f"No broker answers at {dying.bootstrap_servers}; waiting for one. Ctrl-C ends.\n"
                dying.restart()
                back = f"A broker answers at {dying.bootstrap_servers} again.\n".encode()
                assert back in iter(following.stderr.readline, b"")
                done(dying, "produce", "orders", stdin=b"after\n")
                # A member whose session ended meanwhile prints again what it could not commit.
                assert b"after\n" in iter(following.stdout.readline, b"")
                if group:
                    wait_until(lambda: committed(dying) == [2], "a commit that failed is repeated")
                following.send_signal(signal.SIGINT)
                following.communicate()
                assert following.returncode == 130
            finally:
                following.kill()
