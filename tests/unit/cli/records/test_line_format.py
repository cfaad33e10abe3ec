import pytest

from skep.cli.failures import CommandError, UsageError
from skep.cli.records.line_format import LineFormat, OutgoingRecord, escaped, line_without_end


def test_a_plain_line_is_a_value_without_a_key() -> None:
    assert LineFormat().record(b"a:b\tc", 1) == OutgoingRecord(None, b"a:b\tc", [])


def test_the_key_ends_at_the_first_separator() -> None:
    lines = LineFormat(parse_key=True, key_separator=b":")
    assert lines.record(b"k:v:w", 1) == OutgoingRecord(b"k", b"v:w", [])
    assert lines.record(b":v", 1) == OutgoingRecord(b"", b"v", [])
    assert lines.record(b"k:", 1) == OutgoingRecord(b"k", b"", [])


def test_a_line_without_the_separator_is_refused_with_its_number() -> None:
    with pytest.raises(CommandError, match="line 7 has no key separator ':'"):
        LineFormat(parse_key=True, key_separator=b":").record(b"nothing", 7)


def test_ignored_errors_make_the_whole_line_the_value() -> None:
    lines = LineFormat(parse_key=True, key_separator=b":", ignore_error=True)
    assert lines.record(b"nothing", 7) == OutgoingRecord(None, b"nothing", [])


def test_headers_stand_before_the_key() -> None:
    lines = LineFormat(parse_key=True, parse_headers=True)
    record = lines.record(b"h1:v1,h2:v2\tkey\tvalue", 1)
    assert record == OutgoingRecord(b"key", b"value", [("h1", b"v1"), ("h2", b"v2")])


def test_a_header_without_its_separator_is_refused() -> None:
    with pytest.raises(CommandError, match="line 3: header 'h2' has no key separator ':'"):
        LineFormat(parse_headers=True).record(b"h1:v1,h2\tvalue", 3)


def test_the_null_marker_makes_keys_values_and_headers_null() -> None:
    lines = LineFormat(parse_key=True, parse_headers=True, null_marker=b"NULL")
    assert lines.record(b"NULL\tNULL\tNULL", 1) == OutgoingRecord(None, None, [])
    assert lines.record(b"h:NULL\tk\tv", 1) == OutgoingRecord(b"k", b"v", [("h", None)])


def test_bytes_that_are_not_utf8_pass_through() -> None:
    assert LineFormat(parse_key=True).record(b"\xff\t\xfe", 1) == OutgoingRecord(b"\xff", b"\xfe", [])


@pytest.mark.parametrize(
    "settings",
    [
        {"headers_delimiter": b","},
        {"headers_separator": b":"},
        {"null_marker": b"\t"},
        {"key_separator": b""},
    ],
)
def test_separators_that_cannot_be_told_apart_are_refused(settings: dict[str, bytes]) -> None:
    with pytest.raises(UsageError):
        LineFormat(**settings)  # type: ignore[arg-type]


def test_a_line_loses_its_end_and_nothing_else() -> None:
    assert line_without_end(b" a \r\n") == b" a "
    assert line_without_end(b"a\n") == b"a"
    assert line_without_end(b"a") == b"a"
    assert line_without_end(b"\n") == b""


def test_a_tabulator_may_be_typed_as_backslash_t() -> None:
    assert escaped("\\t") == b"\t"
    assert escaped("=>") == b"=>"
