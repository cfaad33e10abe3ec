from pathlib import Path

import pytest

from skep.cli.failures import UsageError
from skep.cli.kafka import kafka_console_consumer, kafka_console_producer, kafka_topics
from skep.cli.kafka.kafka_flags import read_properties, topics_matching
from skep.cli.records.topic_reader import Place, Start
from skep.cli.topics.topic_admin import PartitionView, TopicView

BROKER = ["--bootstrap-server", "127.0.0.1:1"]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--list", "--zookeeper", "localhost:2181"], "use --bootstrap-server"),
        (["--list"], "--bootstrap-server must be specified"),
        (BROKER, "exactly one action"),
        ([*BROKER, "--list", "--create"], "exactly one action"),
        ([*BROKER, "--create"], "--topic is required with --create"),
        ([*BROKER, "--delete", "--topic", "t", "--partitions", "3"], "--partitions cannot be used with --delete"),
        ([*BROKER, "--alter", "--topic", "t", "--replication-factor", "3"], "cannot be used with --alter"),
        ([*BROKER, "--alter", "--topic", "t"], "--partitions is required"),
        ([*BROKER, "--create", "--topic", "t", "--partitions", "0"], "greater than 0"),
        ([*BROKER, "--create", "--topic", "t", "--partitions", "many"], "invalid int value"),
        ([*BROKER, "--create", "--topic", "t", "--replica-assignment", "1:1"], "no broker twice"),
        ([*BROKER, "--create", "--topic", "t", "--config", "retention.ms"], "expected NAME=VALUE"),
        ([*BROKER, "--list", "--no-such-flag"], "unrecognized arguments"),
    ],
)
def test_kafka_topics_refuses_flags_that_do_not_go_together(arguments: list[str], complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        kafka_topics.execute(arguments)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ([], "--include/--topic"),
        (["--topic", "t", "--include", "u"], "--include/--topic"),
        (["--topic", "t", "--offset", "3"], "The partition is required"),
        (["--topic", "t", "--partition", "0", "--offset", "3", "--from-beginning"], "from-beginning and offset"),
        (["--topic", "t", "--partition", "0", "--offset", "3x"], "offset value '3x' is incorrect"),
        (["--topic", "t", "--partition", "0", "--group", "g"], "group and partition"),
        (["--topic", "t", "--formatter", "com.example.Mine"], "Java classes"),
        (["--topic", "t", "--value-deserializer", "com.example.Mine"], "Java classes"),
        (["--topic", "t", "--property", "print.key"], "expected NAME=VALUE"),
        (["--topic", "t", "--zookeeper", "z:2181"], "use --bootstrap-server"),
    ],
)
def test_kafka_console_consumer_refuses_flags_that_do_not_go_together(arguments: list[str], complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        kafka_console_consumer.execute([*BROKER, *arguments])


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ([], "--topic"),
        (["--topic", "t"], "--bootstrap-server must be specified"),
        (["--topic", "t", *BROKER, "--line-reader", "com.example.Mine"], "Java classes"),
        (["--topic", "t", *BROKER, "--compression-codec", "rar"], "invalid choice"),
        (["--topic", "t", *BROKER, "--property", "headers.separator=:"], "must differ"),
    ],
)
def test_kafka_console_producer_refuses_flags_that_do_not_go_together(arguments: list[str], complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        kafka_console_producer.execute(arguments)


def test_the_flags_of_the_producer_become_properties_of_the_client() -> None:
    parser = kafka_console_producer._parser()
    flags = parser.parse(
        [
            "--broker-list",
            "h:1",
            "--topic",
            "t",
            "--compression-codec",
            "--timeout",
            "7",
            "--request-required-acks",
            "1",
        ],
        fallback="broker_list",
    )
    assert flags.bootstrap_server == "h:1"
    settings = kafka_console_producer.client_settings(flags, interactive=False)
    assert settings["compression.type"] == "gzip"
    assert settings["linger.ms"] == 7
    assert settings["acks"] == "1"


def test_reader_properties_become_the_form_of_lines() -> None:
    lines = kafka_console_producer.line_format({"parse.key": "TRUE", "key.separator": "::", "null.marker": "N"})
    assert lines.record(b"k::N", 1) == (b"k", None, [])


def test_formatter_properties_become_the_form_of_output() -> None:
    text = kafka_console_consumer.text_format({"print.key": "true", "print.value": "false", "null.literal": "-"})
    assert (text.print_key, text.print_value, text.null_literal, text.key_separator) == (True, False, b"-", b"\t")


@pytest.mark.parametrize(
    ("offset", "from_beginning", "start"),
    [
        (None, False, Start(Place.END)),
        (None, True, Start(Place.BEGINNING)),
        ("earliest", False, Start(Place.BEGINNING)),
        ("LATEST", False, Start(Place.END)),
        ("42", False, Start(Place.OFFSET, 42)),
    ],
)
def test_the_consumer_starts_at_the_end_unless_told(offset: str | None, from_beginning: bool, start: Start) -> None:
    assert kafka_console_consumer.parse_offset(offset, from_beginning) == start


def test_a_description_reads_like_that_of_kafka() -> None:
    partitions = [PartitionView(0, 1, [1, 2], [1]), PartitionView(1, None, [2, 1], [])]
    view = TopicView("orders", "r5vXxLPdRnycNB2PmVKFnQ", partitions, {"retention.ms": "5", "segment.bytes": "100"})
    assert kafka_topics.topic_row(view) == (
        "Topic: orders\tTopicId: r5vXxLPdRnycNB2PmVKFnQ\tPartitionCount: 2\tReplicationFactor: 2\t"
        "Configs: retention.ms=5,segment.bytes=100"
    )
    assert kafka_topics.partition_row(view, partitions[0]) == (
        "\tTopic: orders\tPartition: 0\tLeader: 1\tReplicas: 1,2\tIsr: 1\tElr: N/A\tLastKnownElr: N/A"
    )
    assert "\tLeader: none\tReplicas: 2,1\tIsr: \t" in kafka_topics.partition_row(view, partitions[1])


def test_topics_match_as_in_kafkas_tools() -> None:
    names = ["orders", "orders.eu", "audit"]
    assert topics_matching(names, None) == ["audit", "orders", "orders.eu"]
    assert topics_matching(names, "orders") == ["orders"]
    assert topics_matching(names, "orders.*") == ["orders", "orders.eu"]
    assert topics_matching(names, "orders,audit") == ["audit", "orders"]
    with pytest.raises(UsageError, match="not a regular expression"):
        topics_matching(names, "(")


def test_a_file_of_properties_is_read_without_its_comments(tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text("# a comment\n! another\n\nacks = all\nsasl.password=a=b\n")
    assert read_properties(str(file)) == {"acks": "all", "sasl.password": "a=b"}
