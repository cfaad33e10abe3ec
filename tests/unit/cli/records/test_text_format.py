import json
from typing import Any

from confluent_kafka import TIMESTAMP_CREATE_TIME, TIMESTAMP_LOG_APPEND_TIME, Message

from skep.cli.records.text_format import TextFormat, json_line


def message(**fields: Any) -> Message:
    given = {
        "topic": "orders",
        "partition": 2,
        "offset": 41,
        "key": b"k",
        "value": b"v",
        "headers": [("h1", b"x"), ("h2", None)],
        "timestamp": (TIMESTAMP_CREATE_TIME, 1_700_000_000_000),
    }
    return Message(**(given | fields))


def test_only_the_value_is_printed_unless_more_is_asked_for() -> None:
    assert TextFormat().line(message()) == b"v\n"


def test_all_fields_come_in_the_order_of_kafkas_tool() -> None:
    everything = TextFormat(
        print_timestamp=True, print_partition=True, print_offset=True, print_headers=True, print_key=True
    )
    expected = b"CreateTime:1700000000000\tPartition:2\tOffset:41\th1:x,h2:null\tk\tv\n"
    assert everything.line(message()) == expected


def test_what_is_missing_has_a_word() -> None:
    text = TextFormat(print_headers=True, print_key=True, key_separator=b"|", null_literal=b"-")
    assert text.line(message(key=None, value=None, headers=None)) == b"NO_HEADERS|-|-\n"


def test_bytes_are_printed_as_they_are() -> None:
    assert TextFormat().line(message(value=b"\xff\x00")) == b"\xff\x00\n"


def test_a_json_line_has_all_about_the_record() -> None:
    line = json_line(message(timestamp=(TIMESTAMP_LOG_APPEND_TIME, 5)))
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert json.loads(line) == {
        "topic": "orders",
        "partition": 2,
        "offset": 41,
        "timestamp": 5,
        "timestamp_type": "LogAppendTime",
        "key": "k",
        "value": "v",
        "headers": [{"key": "h1", "value": "x"}, {"key": "h2", "value": None}],
    }


def test_bytes_that_are_not_utf8_are_marked_as_base64() -> None:
    fields = json.loads(json_line(message(key=None, value=b"\xff\xfe", headers=None)))
    assert (fields["key"], fields["value"], fields["headers"]) == (None, {"base64": "//4="}, [])


def test_a_value_with_line_ends_stays_on_one_line() -> None:
    line = json_line(message(value="a\nb\u2028é".encode()))
    assert line.count(b"\n") == 1
    assert json.loads(line)["value"] == "a\nb\u2028é"
