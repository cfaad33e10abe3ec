"""``kafka-console-consumer`` with Kafka's flags: print the records of topics as they arrive.

With ``--group`` (or ``--consumer-property group.id=``) it joins that group and commits the offsets of printed records.
Without a group it reads all partitions and commits nothing. Kafka's tool joins a group with a random name instead,
which the cluster then keeps for days.
"""

import argparse
import contextlib
import sys
from collections.abc import Mapping

from skep.cli import output
from skep.cli.connection import Cluster, unknown_topic
from skep.cli.failures import UsageError, run
from skep.cli.kafka.kafka_flags import (
    KafkaFlags,
    cluster_from,
    form_properties,
    no_java,
    only_java_strings,
    topics_matching,
    truth,
)
from skep.cli.partition_selection import partitions_of
from skep.cli.records.group_reader import read_as_member
from skep.cli.records.text_format import TextFormat
from skep.cli.records.topic_reader import Batches, Place, Start, read, spans

EXAMPLES = """\
  kafka-console-consumer --bootstrap-server localhost:9092 --topic orders --from-beginning
  kafka-console-consumer --bootstrap-server localhost:9092 --topic orders --partition 0 --offset 42 --max-messages 10 \\
      --property print.key=true --property print.timestamp=true
"""
DEFAULT_FORMATTERS = ("DefaultMessageFormatter", "NoOpMessageFormatter")


def main() -> None:
    sys.exit(run("kafka-console-consumer", lambda: execute(None)))


def _parser() -> KafkaFlags:
    parser = KafkaFlags("kafka-console-consumer", "Print the records of topics.", EXAMPLES)
    parser.add_argument("--topic", help="the topic to consume from")
    parser.add_argument("--include", "--whitelist", metavar="REGEX", help="consume from all topics that match")
    parser.add_argument("--partition", type=int, metavar="N", help="only this partition")
    parser.add_argument("--offset", help="an offset, earliest or latest; requires --partition")
    parser.add_argument("--from-beginning", action="store_true", help="start with the earliest record")
    parser.add_argument("--max-messages", type=int, metavar="N", help="exit after this many messages")
    parser.add_argument("--timeout-ms", type=int, metavar="MS", help="exit if no message arrives for this long")
    parser.add_argument("--isolation-level", default="read_uncommitted", choices=("read_uncommitted", "read_committed"))
    parser.add_argument("--group", help="the consumer group to join; offsets are committed")
    parser.add_argument("--skip-message-on-error", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--formatter", help=argparse.SUPPRESS)
    parser.add_argument("--key-deserializer", help=argparse.SUPPRESS)
    parser.add_argument("--value-deserializer", help=argparse.SUPPRESS)
    parser.add_form_flags(
        "formatter",
        "print.timestamp, print.key, print.offset, print.epoch, print.partition, print.headers, print.value, "
        "key.separator, line.separator, headers.separator, null.literal",
    )
    parser.add_client_flags("consumer")
    return parser


def execute(arguments: list[str] | None) -> None:
    flags = _parser().parse(arguments)
    start = _start(flags)
    text = text_format(form_properties(flags))
    records = _records(cluster_from(flags), flags, start)
    printed = 0
    silent = (flags.formatter or "").endswith("NoOpMessageFormatter")
    try:
        with contextlib.closing(records):
            for messages in records:
                printed += len(messages)
                if messages and not silent:
                    output.write(b"".join(map(text.line, messages)))
                    output.flush()
    finally:
        output.error_line(f"Processed a total of {printed} messages")


def _records(cluster: Cluster, flags: argparse.Namespace, start: Start) -> Batches:
    max_messages = _unless_negative(flags.max_messages)
    timeout_ms = _unless_negative(flags.timeout_ms)
    idle_timeout_s = None if timeout_ms is None else timeout_ms / 1000
    settings = {"client.id": "console-consumer", "isolation.level": flags.isolation_level}
    topics = _topics(cluster, flags)
    group = flags.group or cluster.properties.get("group.id")
    if group is not None and flags.partition is None:
        settings["auto.offset.reset"] = "earliest" if start.place is Place.BEGINNING else "latest"
        return read_as_member(
            cluster,
            topics,
            group,
            follow=True,
            max_messages=max_messages,
            idle_timeout_s=idle_timeout_s,
            settings=settings,
        )
    partitions = [] if flags.partition is None else [flags.partition]
    wanted = {
        topic: spans(cluster, topic, partitions_of(cluster, topic, partitions), start, follow=True) for topic in topics
    }
    return read(cluster, wanted, max_messages=max_messages, idle_timeout_s=idle_timeout_s, settings=settings)


def _unless_negative(number: int | None) -> int | None:
    """Kafka's tools take -1 as "no limit"."""
    return None if number is None or number < 0 else number


def _topics(cluster: Cluster, flags: argparse.Namespace) -> list[str]:
    names = cluster.metadata().topics
    topics = [flags.topic] if flags.include is None else topics_matching(names, flags.include)
    if not topics or topics[0] not in names:
        raise unknown_topic(flags.topic or flags.include, names)
    return topics


def _start(flags: argparse.Namespace) -> Start:
    if (flags.topic is None) == (flags.include is None):
        raise UsageError("Exactly one of --include/--topic is required")
    if flags.offset is not None and flags.partition is None:
        raise UsageError("The partition is required when offset is specified.")
    if flags.partition is not None and flags.topic is None:
        raise UsageError("The topic is required when partition is specified.")
    if flags.offset is not None and flags.from_beginning:
        raise UsageError("Options from-beginning and offset cannot be specified together.")
    if flags.partition is not None and flags.group is not None:
        raise UsageError("Options group and partition cannot be specified together.")
    only_java_strings(flags, "key_deserializer", "value_deserializer")
    if flags.formatter is not None and not flags.formatter.endswith(DEFAULT_FORMATTERS):
        raise no_java("--formatter", flags.formatter)
    return parse_offset(flags.offset, flags.from_beginning)


def parse_offset(offset: str | None, from_beginning: bool) -> Start:
    if offset is None:
        return Start(Place.BEGINNING if from_beginning else Place.END)
    named = {"earliest": Place.BEGINNING, "latest": Place.END}
    if offset.lower() in named:
        return Start(named[offset.lower()])
    if not offset.isdecimal():
        raise UsageError(
            f"The provided offset value '{offset}' is incorrect. Valid values are 'earliest', 'latest', or "
            "a non-negative long."
        )
    return Start(Place.OFFSET, int(offset))


def text_format(properties: Mapping[str, str]) -> TextFormat:
    plain = TextFormat()
    return TextFormat(
        print_timestamp=truth(properties, "print.timestamp"),
        print_partition=truth(properties, "print.partition"),
        print_offset=truth(properties, "print.offset"),
        print_epoch=truth(properties, "print.epoch"),
        print_headers=truth(properties, "print.headers"),
        print_key=truth(properties, "print.key"),
        print_value=truth(properties, "print.value", default=True),
        key_separator=properties.get("key.separator", plain.key_separator.decode()).encode(),
        line_separator=properties.get("line.separator", plain.line_separator.decode()).encode(),
        headers_separator=properties.get("headers.separator", plain.headers_separator.decode()).encode(),
        null_literal=properties.get("null.literal", plain.null_literal.decode()).encode(),
    )
