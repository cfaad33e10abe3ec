"""``skep produce``: send lines as records."""

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, BinaryIO, Literal

import typer

from skep.cli import output
from skep.cli.connection import DEFAULT_BOOTSTRAP, Bootstrap, Properties, cluster_of
from skep.cli.failures import CommandError, UsageError
from skep.cli.records.line_format import Headers, LineFormat, OutgoingRecord, escaped, line_without_end
from skep.cli.records.sender import ANY_PARTITION, Sender

Codec = Literal["none", "gzip", "snappy", "lz4", "zstd"]
Acks = Literal["0", "1", "all"]
CodecOption = Annotated[Codec, typer.Option("--codec", "-z", help="The compression of batches.")]
AcksOption = Annotated[
    Acks, typer.Option("--acks", help="Who acknowledges a record: nobody, the leader, or all in-sync replicas.")
]
PROGRESS_EVERY = 1 << 18
INTERACTIVE_LINGER_MS = 0
BULK_LINGER_MS = 20


def register(app: typer.Typer) -> None:
    app.command("produce")(produce)


def produce(
    topic: Annotated[str, typer.Argument(metavar="TOPIC")],
    key_separator: Annotated[
        str | None,
        typer.Option(
            "--key-separator",
            "-k",
            metavar="TEXT",
            help="The text between key and value in a line; without it, no keys.",
        ),
    ] = None,
    header: Annotated[
        list[str] | None, typer.Option("--header", metavar="NAME=VALUE", help="A header for every record. Repeatable.")
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option("--file", "-f", metavar="FILE", help="Read lines from this file instead of standard input."),
    ] = None,
    codec: CodecOption = "none",
    acks: AcksOption = "all",
    partition: Annotated[
        int | None, typer.Option("--partition", "-p", min=0, metavar="N", help="Send all records to this partition.")
    ] = None,
    idempotent: Annotated[
        bool, typer.Option("--idempotent", help="Retries neither duplicate nor reorder records.")
    ] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    properties: Properties = None,
) -> None:
    """Send each line of standard input, or of a file, as a record.

    A line on stderr reports the number of records and the rate. The exit code is 0 only if every record was
    acknowledged.

    \b
    Examples:
      echo hello | skep produce greetings
      skep produce orders --file orders.txt --key-separator : --codec zstd
      skep produce audit --header source=shell --acks all --idempotent < events.jsonl
    """
    if idempotent and acks != "all":
        raise UsageError("--idempotent needs --acks all")
    lines = LineFormat(
        parse_key=key_separator is not None,
        key_separator=b"\t" if key_separator is None else escaped(key_separator),
    )
    headers = _parse_headers(header)
    cluster = cluster_of(bootstrap, properties)
    with _opened(file) as source:
        settings = {
            "compression.type": codec,
            "acks": acks,
            "enable.idempotence": idempotent,
            "linger.ms": INTERACTIVE_LINGER_MS if source.isatty() else BULK_LINGER_MS,
        }
        with Sender(cluster, topic, settings, ANY_PARTITION if partition is None else partition) as sender:
            if source.isatty():
                output.note("Each line is a record; Ctrl-D ends the input.")
            with contextlib.suppress(KeyboardInterrupt):
                _send_all(sender, source, lines, headers, file)
    seconds = sender.seconds()
    records = output.count(sender.sent, "record")
    speed = f"{output.rate(sender.sent, seconds, ' records')}, {output.rate(sender.sent_bytes, seconds, 'B')}"
    output.note(f"{records} in {seconds:.2f} s: {speed}")


def _send_all(sender: Sender, source: BinaryIO, lines: LineFormat, headers: Headers, file: Path | None) -> None:
    size = file.stat().st_size if file is not None else None
    with output.progress(shown=file is not None, unit_is_bytes=True) as progress:
        task = progress.add_task("sending", total=size)
        unshown = 0
        for line, record in _records(source, lines, headers):
            sender.send(record)
            unshown += len(line)
            if unshown >= PROGRESS_EVERY:
                progress.advance(task, unshown)
                unshown = 0


def _records(source: BinaryIO, lines: LineFormat, headers: Headers) -> Iterator[tuple[bytes, OutgoingRecord]]:
    if not lines.parse_key:
        for line in source:
            yield line, OutgoingRecord(None, line_without_end(line), headers)
        return
    for number, line in enumerate(source, start=1):
        key, value, _ = lines.record(line_without_end(line), number)
        yield line, OutgoingRecord(key, value, headers)


def _parse_headers(texts: list[str] | None) -> Headers:
    headers: Headers = []
    for text in texts or ():
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise UsageError(f"--header {text}: expected NAME=VALUE")
        headers.append((name, value.encode()))
    return headers


@contextlib.contextmanager
def _opened(file: Path | None) -> Iterator[BinaryIO]:
    if file is None:
        yield sys.stdin.buffer
        return
    try:
        source = file.open("rb")
    except OSError as error:
        raise CommandError(f"cannot read {file}: {error.strerror}") from None
    with source:
        yield source
