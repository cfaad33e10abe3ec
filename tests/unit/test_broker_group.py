"""The log of several brokers as one: every line says which broker it is of."""

from skep.broker_group import _marked


def test_a_line_of_text_begins_with_its_broker() -> None:
    assert _marked("2", b"2026-01-31 INFO ready") == b"[broker 2] 2026-01-31 INFO ready\n"


def test_a_broker_that_cannot_start_is_named() -> None:
    assert _marked("2", b"skep: the port is taken") == b"skep: broker 2: the port is taken\n"


def test_a_line_of_json_stays_json() -> None:
    assert _marked("2", b'{"broker": 2}') == b'{"broker": 2}\n'
