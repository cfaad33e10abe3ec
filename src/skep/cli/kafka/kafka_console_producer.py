"""``kafka-console-producer`` with Kafka's flags: send lines of standard input as records."""

import argparse
import contextlib
import sys
from collections.abc import Iterator, Mapping
from typing import BinaryIO

from skep.cli import output
from skep.cli.failures import run
from skep.cli.kafka.kafka_flags import KafkaFlags, cluster_from, form_properties, no_java, truth
from skep.cli.records.line_format import LineFormat, line_without_end
from skep.cli.records.sender import Sender

EXAMPLES = """\
  kafka-console-producer --broker-list localhost:9092 --topic orders
  kafka-console-producer --bootstrap-server localhost:9092 --topic orders --property parse.key=true \\
      --property key.separator=:
"""
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
DEFAULT_READER = "org.apache.kafka.tools.LineMessageReader"
SETTINGS = {
    "batch_size": "batch.size",
    "max_partition_memory_bytes": "batch.size",
    "message_send_max_retries": "message.send.max.retries",
    "retry_backoff_ms": "retry.backoff.ms",
    "timeout": "linger.ms",
    "request_timeout_ms": "request.timeout.ms",
    "metadata_expiry_ms": "metadata.max.age.ms",
    "max_block_ms": "message.timeout.ms",
    "socket_buffer_size": "socket.send.buffer.bytes",
}
"""Flags that set one client property. ``max-block-ms`` limits how long a record may wait for its broker."""


def main() -> None:
    sys.exit(run("kafka-console-producer", lambda: execute(None)))


def _parser() -> KafkaFlags:
    parser = KafkaFlags("kafka-console-producer", "Send lines of standard input as records.", EXAMPLES)
    parser.add_argument("--broker-list", metavar="HOST:PORT", help="the older name of --bootstrap-server")
    parser.add_argument("--topic", required=True, help="the topic to produce to")
    parser.add_argument("--sync", action="store_true", help="wait for the acknowledgement of each record")
    parser.add_argument("--compression-codec", nargs="?", const="gzip", default="none", choices=CODECS)
    parser.add_argument("--request-required-acks", default="-1", choices=("-1", "all", "0", "1"))
    for flag in SETTINGS:
        parser.add_argument(f"--{flag.replace('_', '-')}", type=int, metavar="N")
    parser.add_argument("--max-memory-bytes", type=int, metavar="N", help="memory for records waiting to be sent")
    parser.add_argument("--line-reader", default=DEFAULT_READER, help=argparse.SUPPRESS)
    parser.add_form_flags(
        "reader",
        "parse.key, key.separator, parse.headers, headers.delimiter, headers.separator, headers.key.separator, "
        "ignore.error, null.marker",
    )
    parser.add_client_flags("producer")
    return parser


def execute(arguments: list[str] | None) -> None:
    flags = _parser().parse(arguments, fallback="broker_list")
    if flags.line_reader.rpartition(".")[2] not in ("LineMessageReader", "ConsoleProducer$LineMessageReader"):
        raise no_java("--line-reader", flags.line_reader)
    lines = line_format(form_properties(flags))
    cluster = cluster_from(flags)
    interactive = sys.stdin.isatty()
    settings = client_settings(flags, interactive=interactive)
    with Sender(cluster, flags.topic, settings) as sender, contextlib.suppress(KeyboardInterrupt):
        for number, line in enumerate(_lines(sys.stdin.buffer, interactive), start=1):
            sender.send(lines.record(line_without_end(line), number))
            if flags.sync:
                sender.flush()


def client_settings(flags: argparse.Namespace, *, interactive: bool) -> dict[str, object]:
    settings: dict[str, object] = {
        "client.id": "console-producer",
        "compression.type": flags.compression_codec,
        "acks": flags.request_required_acks,
        # Kafka's tool lingers for a second; a line typed on a terminal is sent at once.
        "linger.ms": 0 if interactive or flags.sync else 5,
    }
    for flag, name in SETTINGS.items():
        if (value := getattr(flags, flag)) is not None:
            settings[name] = value
    if flags.max_memory_bytes is not None:
        settings["queue.buffering.max.kbytes"] = max(1, flags.max_memory_bytes // 1024)
    return settings


def line_format(properties: Mapping[str, str]) -> LineFormat:
    plain = LineFormat()
    null_marker = properties.get("null.marker")
    return LineFormat(
        parse_key=truth(properties, "parse.key"),
        key_separator=properties.get("key.separator", plain.key_separator.decode()).encode(),
        parse_headers=truth(properties, "parse.headers"),
        headers_delimiter=properties.get("headers.delimiter", plain.headers_delimiter.decode()).encode(),
        headers_separator=properties.get("headers.separator", plain.headers_separator.decode()).encode(),
        headers_key_separator=properties.get("headers.key.separator", plain.headers_key_separator.decode()).encode(),
        ignore_error=truth(properties, "ignore.error"),
        null_marker=None if null_marker is None else null_marker.encode(),
    )


def _lines(source: BinaryIO, interactive: bool) -> Iterator[bytes]:
    while True:
        if interactive:
            output.write(b">")
            output.flush()
        if not (line := source.readline()):
            return
        yield line
