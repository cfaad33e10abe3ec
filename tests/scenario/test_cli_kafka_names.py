"""The commands under Kafka's names against a real broker, with the flags of the documents that people have."""

import io
import sys
from collections.abc import Callable, Iterator
from uuid import uuid4

import pytest

from skep.cli.failures import CommandError, run
from skep.cli.kafka import kafka_console_consumer, kafka_console_producer, kafka_topics
from skep.testing import EmbeddedBroker

Command = Callable[..., str]


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker() as running:
        yield running


@pytest.fixture
def topic() -> str:
    return f"topic-{uuid4().hex[:8]}"


@pytest.fixture
def command(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> Command:
    """Runs a command line as it is in the documents and gives what it printed."""
    programs = {
        "kafka-topics": kafka_topics.execute,
        "kafka-console-producer": kafka_console_producer.execute,
        "kafka-console-consumer": kafka_console_consumer.execute,
    }

    def run_line(line: str, stdin: bytes = b"") -> str:
        program, *arguments = line.replace("localhost:9092", broker.bootstrap_servers).split()
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        assert run(program, lambda: programs[program](arguments)) == 0
        return capfdbinary.readouterr().out.decode()

    return run_line


def test_the_commands_of_the_documents_work_as_written(command: Command, topic: str) -> None:
    created = command(
        f"kafka-topics --create --bootstrap-server localhost:9092 --replication-factor 1 --partitions 1 --topic {topic}"
    )
    assert created == f"Created topic {topic}.\n"
    assert topic in command("kafka-topics --list --bootstrap-server localhost:9092").splitlines()
    described = command(f"kafka-topics --describe --bootstrap-server localhost:9092 --topic {topic}").splitlines()
    assert described[0].startswith(f"Topic: {topic}\tTopicId: ")
    assert described[0].endswith("\tPartitionCount: 1\tReplicationFactor: 1\tConfigs: ")
    assert (
        described[1] == f"\tTopic: {topic}\tPartition: 0\tLeader: 1\tReplicas: 1\tIsr: 1\tElr: N/A\tLastKnownElr: N/A"
    )
    command(f"kafka-console-producer --broker-list localhost:9092 --topic {topic}", stdin=b"first\nsecond\n")
    consumed = command(
        f"kafka-console-consumer --bootstrap-server localhost:9092 --topic {topic} --from-beginning --max-messages 2"
    )
    assert consumed == "first\nsecond\n"


def test_topics_are_altered_and_deleted(command: Command, topic: str) -> None:
    command(f"kafka-topics --create --bootstrap-server localhost:9092 --topic {topic} --config retention.ms=5000")
    command(f"kafka-topics --create --if-not-exists --bootstrap-server localhost:9092 --topic {topic}")
    command(f"kafka-topics --alter --bootstrap-server localhost:9092 --topic {topic} --partitions 3")
    described = command(f"kafka-topics --describe --bootstrap-server localhost:9092 --topic {topic[:-2]}.*")
    assert "\tPartitionCount: 3\t" in described
    assert "Configs: retention.ms=5000\n" in described
    overridden = command("kafka-topics --describe --bootstrap-server localhost:9092 --topics-with-overrides")
    assert topic in overridden
    assert "Partition: 0" not in overridden
    assert command("kafka-topics --describe --bootstrap-server localhost:9092 --under-replicated-partitions") == ""
    command(f"kafka-topics --delete --bootstrap-server localhost:9092 --topic {topic}")
    assert topic not in command("kafka-topics --list --bootstrap-server localhost:9092")


def test_a_topic_that_is_there_or_is_not_is_a_failure(broker: EmbeddedBroker, command: Command, topic: str) -> None:
    command(f"kafka-topics --create --bootstrap-server localhost:9092 --topic {topic}")
    there = ["--bootstrap-server", broker.bootstrap_servers, "--topic"]
    with pytest.raises(CommandError, match="already exists"):
        kafka_topics.execute(["--create", *there, topic])
    for action in (["--delete"], ["--describe"], ["--alter", "--partitions", "3"]):
        with pytest.raises(CommandError, match=f"no topic 'not-{topic}'"):
            kafka_topics.execute([*action, *there, f"not-{topic}"])
    command(f"kafka-topics --delete --if-exists --bootstrap-server localhost:9092 --topic not-{topic}")


def test_keys_and_headers_go_in_and_come_out(command: Command, topic: str) -> None:
    command(
        f"kafka-console-producer --bootstrap-server localhost:9092 --topic {topic} --sync --compression-codec lz4 "
        "--property parse.key=true --property key.separator=: --reader-property parse.headers=true "
        "--property headers.delimiter=| --property headers.key.separator== --property null.marker=NULL",
        stdin=b"h1=a,h2=b|k1:v1\nNULL|k2:NULL\n",
    )
    consumed = command(
        f"kafka-console-consumer --bootstrap-server localhost:9092 --topic {topic} --partition 0 --offset earliest "
        "--max-messages 2 --property print.key=true --property print.offset=true --property print.partition=true "
        "--formatter-property print.headers=true --property key.separator=;"
    )
    assert consumed == "Partition:0;Offset:0;h1:a,h2:b;k1;v1\nPartition:0;Offset:1;NO_HEADERS;k2;null\n"


def test_a_consumer_with_a_timeout_ends_when_nothing_comes(
    broker: EmbeddedBroker, command: Command, topic: str, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    command(f"kafka-console-producer --broker-list localhost:9092 --topic {topic}", stdin=b"a\nb\n")
    there = ["--bootstrap-server", broker.bootstrap_servers, "--topic", topic, "--timeout-ms"]
    for timeout_ms in ("2000", "30000"):
        kafka_console_consumer.execute([*there, timeout_ms, "--from-beginning"])
        shown = capfdbinary.readouterr()
        if shown.out == b"a\nb\n":
            break  # otherwise nothing came in time, as on a busy machine
    assert shown.out == b"a\nb\n"
    assert shown.err.endswith(b"Processed a total of 2 messages\n")
    kafka_console_consumer.execute([*there, "300"])
    assert capfdbinary.readouterr().out == b""
