"""Parsing lines of text into records: headers, key and value.

The format is Kafka's: ``headers<delimiter>key<separator>value``, with headers and key only if enabled. Lines are bytes
and are not decoded.
"""

from dataclasses import dataclass
from typing import NamedTuple

from skep.cli.failures import CommandError, UsageError

Headers = list[tuple[str, str | bytes | None]]


class OutgoingRecord(NamedTuple):
    key: bytes | None
    value: bytes | None
    headers: Headers


@dataclass(frozen=True)
class LineFormat:
    """How lines are parsed; the defaults are those of kafka-console-producer."""

    parse_key: bool = False
    key_separator: bytes = b"\t"
    parse_headers: bool = False
    headers_delimiter: bytes = b"\t"
    headers_separator: bytes = b","
    headers_key_separator: bytes = b":"
    ignore_error: bool = False
    null_marker: bytes | None = None

    def __post_init__(self) -> None:
        marks = {
            "key.separator": self.key_separator,
            "headers.delimiter": self.headers_delimiter,
            "headers.separator": self.headers_separator,
            "headers.key.separator": self.headers_key_separator,
        }
        for name, mark in marks.items():
            if not mark:
                raise UsageError(f"{name} must not be empty")
            if mark == self.null_marker:
                raise UsageError(f"null.marker and {name} must differ; both are '{mark.decode(errors='replace')}'")
        if len({self.headers_delimiter, self.headers_separator, self.headers_key_separator}) < 3:
            raise UsageError("headers.delimiter, headers.separator and headers.key.separator must differ")

    def record(self, line: bytes, number: int) -> OutgoingRecord:
        """Parses ``line``, which has no line end. ``number`` is the line number for error messages."""
        headers, rest = None, line
        if self.parse_headers:
            headers, rest = self._cut(rest, self.headers_delimiter, "headers delimiter", number)
        key = None
        if self.parse_key:
            key, rest = self._cut(rest, self.key_separator, "key separator", number)
        return OutgoingRecord(self._or_null(key), self._or_null(rest), self._headers(headers, number))

    def _cut(self, text: bytes, mark: bytes, name: str, number: int) -> tuple[bytes | None, bytes]:
        front, found, rest = text.partition(mark)
        if found:
            return front, rest
        if self.ignore_error:
            return None, text
        raise CommandError(f"line {number} has no {name} '{_shown(mark)}'")

    def _headers(self, text: bytes | None, number: int) -> Headers:
        if text is None or text == self.null_marker:
            return []
        headers: Headers = []
        for pair in text.split(self.headers_separator):
            name, found, value = pair.partition(self.headers_key_separator)
            if not found and not self.ignore_error:
                mark = _shown(self.headers_key_separator)
                raise CommandError(f"line {number}: header '{_shown(pair)}' has no key separator '{mark}'")
            headers.append((_shown(name), self._or_null(value) if found else None))
        return headers

    def _or_null(self, field: bytes | None) -> bytes | None:
        return None if field == self.null_marker else field


def _shown(name: bytes) -> str:
    return name.decode(errors="replace")


def line_without_end(line: bytes) -> bytes:
    return line.removesuffix(b"\n").removesuffix(b"\r")


def escaped(text: str) -> bytes:
    r"""Returns the bytes of a separator given on the command line, where ``\t`` stands for a tab."""
    return text.replace("\\t", "\t").encode()
