"""Formatting a message: as text in the format of kafka-console-consumer, or as a line of JSON."""

from dataclasses import dataclass
from typing import cast

from confluent_kafka import TIMESTAMP_CREATE_TIME, TIMESTAMP_LOG_APPEND_TIME, Message

from skep.cli.output import json_bytes, readable

TIMESTAMP_TYPES = {TIMESTAMP_CREATE_TIME: "CreateTime", TIMESTAMP_LOG_APPEND_TIME: "LogAppendTime"}


@dataclass(frozen=True)
class TextFormat:
    """The fields to print, in this order; the defaults are those of kafka-console-consumer."""

    print_timestamp: bool = False
    print_partition: bool = False
    print_offset: bool = False
    print_epoch: bool = False
    print_headers: bool = False
    print_key: bool = False
    print_value: bool = True
    key_separator: bytes = b"\t"
    line_separator: bytes = b"\n"
    headers_separator: bytes = b","
    null_literal: bytes = b"null"

    def line(self, message: Message) -> bytes:
        fields = []
        if self.print_timestamp:
            kind, timestamp = message.timestamp()
            fields.append(
                f"{TIMESTAMP_TYPES[kind]}:{timestamp}".encode() if kind in TIMESTAMP_TYPES else b"NO_TIMESTAMP"
            )
        if self.print_partition:
            fields.append(b"Partition:%d" % (message.partition() or 0))
        if self.print_offset:
            fields.append(b"Offset:%d" % (message.offset() or 0))
        if self.print_epoch:
            epoch = message.leader_epoch()
            fields.append(b"Epoch:NOT_PRESENT" if epoch is None else b"Epoch:%d" % epoch)
        if self.print_headers:
            fields.append(self._headers(message))
        if self.print_key:
            fields.append(self._or_null(message.key()))
        if self.print_value:
            fields.append(self._or_null(message.value()))
        return self.key_separator.join(fields) + self.line_separator

    def _headers(self, message: Message) -> bytes:
        headers = headers_of(message)
        if not headers:
            return b"NO_HEADERS"
        return self.headers_separator.join(name.encode() + b":" + self._or_null(value) for name, value in headers)

    def _or_null(self, field: bytes | None) -> bytes:
        return self.null_literal if field is None else field


def headers_of(message: Message) -> list[tuple[str, bytes | None]]:
    """Returns the headers with the type they have in a consumer; the library's annotation covers producers, too."""
    return cast("list[tuple[str, bytes | None]]", message.headers() or [])


def json_line(message: Message) -> bytes:
    """Returns a line with one JSON object. A key or value that is not UTF-8 is ``{"base64": "..."}``, not a string."""
    kind, timestamp = message.timestamp()
    fields = {
        "topic": message.topic(),
        "partition": message.partition(),
        "offset": message.offset(),
        "timestamp": timestamp if kind in TIMESTAMP_TYPES else None,
        "timestamp_type": TIMESTAMP_TYPES.get(kind),
        "key": readable(message.key()),
        "value": readable(message.value()),
        "headers": [{"key": name, "value": readable(value)} for name, value in headers_of(message)],
    }
    return json_bytes(fields)
