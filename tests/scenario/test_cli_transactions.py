"""``skep transactions`` and ``kafka-transactions`` against a real broker, with transactions that are open or hang."""

import json
import shutil
from collections.abc import Iterator
from uuid import uuid4

import pytest
from confluent_kafka import KafkaException, Producer
from typer.testing import CliRunner, Result

from skep.cli.failures import CommandError
from skep.cli.kafka import kafka_transactions
from skep.cli.main import app
from skep.testing import EmbeddedBroker


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker() as running:
        yield running


@pytest.fixture(autouse=True)
def bootstrap(broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SKEP_BOOTSTRAP", broker.bootstrap_servers)


@pytest.fixture
def topic(bootstrap: None) -> str:
    name = f"topic-{uuid4().hex[:8]}"
    done("topics", "create", name, "-p", 2)
    return name


@pytest.fixture
def transactional_id() -> str:
    return f"tx-{uuid4().hex[:8]}"


def transactional_producer(broker: EmbeddedBroker, transactional_id: str) -> Producer:
    producer = Producer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "transactional.id": transactional_id,
            "transaction.timeout.ms": 45_000,
            "log_level": 0,
        }
    )
    producer.init_transactions(30)
    return producer


@pytest.fixture
def producer(broker: EmbeddedBroker, transactional_id: str, topic: str) -> Producer:
    """With an open transaction that has a record in each partition."""
    made = transactional_producer(broker, transactional_id)
    made.begin_transaction()
    for partition in (0, 1):
        made.produce(topic, b"open", partition=partition)
    assert made.flush(30) == 0
    return made


def skep(*arguments: object, stdin: str | None = None) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments], input=stdin)


def done(*arguments: object, stdin: str | None = None) -> str:
    result = skep(*arguments, stdin=stdin)
    assert result.exit_code == 0, result.output
    return result.stdout


def failed(*arguments: object) -> str:
    result = skep(*arguments)
    assert isinstance(result.exception, CommandError), result.output
    assert "\n" not in str(result.exception)
    return str(result.exception)


def kafka(broker: EmbeddedBroker, capfd: pytest.CaptureFixture[str], line: str) -> list[list[str]]:
    """The fields of each line that kafka-transactions printed."""
    capfd.readouterr()
    kafka_transactions.execute(["--bootstrap-server", broker.bootstrap_servers, *line.split()])
    lines = capfd.readouterr().out.splitlines()
    assert all(text.endswith("\t") for text in lines)
    return [[field.strip() for field in text.split("\t")[:-1]] for text in lines]


@pytest.fixture
def hanging(monkeypatch: pytest.MonkeyPatch) -> Iterator[EmbeddedBroker]:
    """A broker whose topic ``orders`` has a committed record and then, at offset 2, an open transaction that its
    coordinator has forgotten: the coordinator's records are lost, the partition's are there."""
    with EmbeddedBroker() as broker:
        monkeypatch.setenv("SKEP_BOOTSTRAP", broker.bootstrap_servers)
        done("topics", "create", "orders")
        producer = transactional_producer(broker, "billing-1")
        for value in (b"committed", b"hangs"):
            producer.begin_transaction()
            producer.produce("orders", value)
            assert producer.flush(30) == 0
            if value == b"committed":
                producer.commit_transaction(30)
        broker.kill()
        for directory in broker.data_dir.glob("__transaction_state-*"):
            shutil.rmtree(directory)
        broker.restart()
        yield broker


def test_an_id_that_has_begun_no_transaction_yet_is_described(broker: EmbeddedBroker, transactional_id: str) -> None:
    transactional_producer(broker, transactional_id)
    [described] = json.loads(done("transactions", "describe", transactional_id, "--json"))
    assert (described["state"], described["start_ms"], described["partitions"]) == ("Empty", None, [])
    assert "Empty" in done("transactions", "describe", transactional_id)


def test_an_open_transaction_is_listed_and_described(topic: str, transactional_id: str, producer: Producer) -> None:
    [listed] = json.loads(done("transactions", "list", "--id", transactional_id, "--json"))
    assert (listed["state"], listed["coordinator"]) == ("Ongoing", 1)
    assert transactional_id in done("transactions", "list", "--state", "Ongoing")
    assert transactional_id not in done("transactions", "list", "--state", "CompleteAbort")
    assert transactional_id not in done("transactions", "list", "--longer-than", "1h")

    [described] = json.loads(done("transactions", "describe", transactional_id, "--json"))
    assert described["partitions"] == [{"topic": topic, "partition": partition} for partition in (0, 1)]
    assert described["timeout_ms"] == 45_000
    assert 0 <= described["duration_ms"] < 600_000
    shown = done("transactions", "describe", transactional_id).splitlines()
    assert shown[0] == f"{transactional_id}  Ongoing  coordinator 1"
    assert shown[-1] == f"  {topic}-0 {topic}-1"

    [row] = json.loads(done("transactions", "producers", f"{topic}:1", "--json"))
    assert (row["producer_id"], row["start_offset"]) == (listed["producer_id"], 0)
    producer.commit_transaction(30)
    assert done("consume", topic).split() == ["open", "open"]
    assert failed("transactions", "abort", transactional_id, "--yes").endswith("its state is CompleteCommit")


def test_aborting_by_id_ends_it_everywhere_and_shuts_its_producer_out(
    topic: str, transactional_id: str, producer: Producer
) -> None:
    refused = skep("transactions", "abort", transactional_id, stdin="n\n")
    assert str(refused.exception) == "not confirmed; nothing was changed (use --yes to skip the question)"
    assert refused.stderr == f"Abort the transaction of {transactional_id} and fence its producer? [y/N] "
    assert done("consume", topic) == ""
    [described] = json.loads(done("transactions", "describe", transactional_id, "--json"))
    assert described["state"] == "Ongoing"

    aborted = skep("transactions", "abort", transactional_id, stdin="y\n")
    assert (aborted.exit_code, aborted.stdout) == (0, f"Aborted the transaction of {transactional_id}.\n")
    with pytest.raises(KafkaException):
        producer.commit_transaction(30)
    assert done("consume", topic) == ""
    assert done("consume", topic, "--isolation-level", "read_uncommitted").split() == ["open", "open"]
    rows = json.loads(done("transactions", "producers", topic, "--json"))
    assert [row["start_offset"] for row in rows] == [None, None]


def test_a_transaction_that_hangs_is_found_and_ended_where_it_hangs(hanging: EmbeddedBroker) -> None:
    assert done("transactions", "list") == ""
    assert done("consume", "orders").split() == ["committed"]
    assert done("transactions", "find-hanging", "orders", "--older-than", "1h") == ""
    [row] = json.loads(done("transactions", "find-hanging", "--older-than", "0ms", "--json"))
    assert (row["topic"], row["partition"], row["start_offset"]) == ("orders", 0, 2)
    done("produce", "orders", stdin="later\n")
    assert done("consume", "orders").split() == ["committed"]

    at = ("--topic", "orders", "--partition", 0, "--start-offset")
    assert failed("transactions", "abort", *at, 999, "--yes").endswith("the open ones start at 2")
    done("transactions", "abort", *at, 2, "--yes")
    assert "There are no hanging transactions." in skep("transactions", "find-hanging", "--older-than", "0ms").stderr
    assert done("consume", "orders").split() == ["committed", "later"]


def test_one_that_its_coordinator_will_end_does_not_hang(topic: str, producer: Producer) -> None:
    result = skep("transactions", "find-hanging", topic, "--older-than", "0ms")
    assert (result.stdout, result.stderr) == ("", "There are no hanging transactions.\n")
    producer.abort_transaction(30)


def test_what_cannot_be_is_said(topic: str) -> None:
    assert failed("transactions", "describe", "nobody") == "there is no transactional id 'nobody'"
    assert "'Sleeping' is not a state of transactions" in failed("transactions", "list", "--state", "Sleeping")
    assert "not a regular expression" in failed("transactions", "list", "--id", "(")
    assert "has no partition 7" in failed("transactions", "producers", f"{topic}:7")
    assert "is it a port without TLS?" in failed("transactions", "list", "-X", "security.protocol=SSL")


def test_kafkas_command_prints_kafkas_columns(
    broker: EmbeddedBroker,
    topic: str,
    transactional_id: str,
    producer: Producer,
    capfd: pytest.CaptureFixture[str],
) -> None:
    [heading, row] = kafka(broker, capfd, f"list --transactional-id-pattern {transactional_id}")
    assert heading == ["TransactionalId", "Coordinator", "ProducerId", "TransactionState"]
    assert (row[0], row[1], row[3]) == (transactional_id, "1", "Ongoing")
    producer_id = row[2]

    [heading, row] = kafka(broker, capfd, f"describe --transactional-id {transactional_id}")
    described = dict(zip(heading, row, strict=True))
    assert described["TopicPartitions"] == f"{topic}-0,{topic}-1"
    assert described["TransactionTimeoutMs"] == "45000"

    [heading, row] = kafka(broker, capfd, f"describe-producers --topic {topic} --partition 1")
    assert dict(zip(heading, row, strict=True))["CurrentTransactionStartOffset"] == "0"
    assert row[0] == producer_id

    kafka(broker, capfd, f"forceTerminateTransaction --transactionalId {transactional_id}")
    [_, row] = kafka(broker, capfd, f"describe-producers --topic {topic} --partition 1")
    assert row[-1] == "None"


def test_kafkas_command_ends_what_hangs(hanging: EmbeddedBroker, capfd: pytest.CaptureFixture[str]) -> None:
    search = "find-hanging --topic orders --max-transaction-timeout -1"
    [heading, row] = kafka(hanging, capfd, search)
    found = dict(zip(heading, row, strict=True))
    assert (found["Topic"], found["Partition"], found["StartOffset"]) == ("orders", "0", "2")
    kafka(
        hanging,
        capfd,
        f"abort --topic orders --partition 0 --producer-id {found['ProducerId']} "
        f"--producer-epoch {found['ProducerEpoch']} --coordinator-epoch {found['CoordinatorEpoch']}",
    )
    assert kafka(hanging, capfd, search) == [heading]
