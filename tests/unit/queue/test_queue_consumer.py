"""How records are divided among lanes, and which arguments are refused."""

import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skep.client.errors import Unreachable
from skep.queue import server_address
from skep.queue.group_setup import prepare_group
from skep.queue.queue_consumer import MOST_LANES, consume, lane_sizes


@given(concurrency=st.integers(1, 500), more=st.integers(0, 5000))
def test_the_lanes_take_no_more_than_the_prefetch_together(concurrency: int, more: int) -> None:
    sizes = lane_sizes(concurrency, concurrency + more, MOST_LANES)
    assert sum(sizes) == concurrency + more
    assert len(sizes) == min(concurrency, MOST_LANES)
    assert max(sizes) - min(sizes) <= 1
    assert min(sizes) >= 1
    assert lane_sizes(concurrency, concurrency + more, 1) == [concurrency + more]


def test_arguments_that_make_no_sense_are_refused_before_anything_starts() -> None:
    with pytest.raises(ValueError, match="concurrency=0: must be at least 1"):
        consume("jobs", print, group="workers", concurrency=0)
    with pytest.raises(ValueError, match="prefetch=3: must be at least concurrency=4"):
        consume("jobs", print, group="workers", concurrency=4, prefetch=3)


def test_no_broker_is_one_clear_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("skep.queue.group_setup.CONNECT_S", 0.2)
    client = server_address.client_properties("127.0.0.1:1", {"log_level": 0})
    with pytest.raises(Unreachable, match=r"^no broker answers at 127\.0\.0\.1:1$"):
        prepare_group(client, "workers", ("jobs",), None)


def test_the_address_comes_from_the_environment_as_for_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SKEP_BOOTSTRAP", raising=False)
    assert server_address.plain_properties(None, None)["bootstrap.servers"] == "127.0.0.1:9092"
    monkeypatch.setenv("SKEP_BOOTSTRAP", "a:1")
    assert server_address.plain_properties(None, None)["bootstrap.servers"] == "a:1"
    assert server_address.plain_properties("b:2", {"client.id": "x"})["client.id"] == "x"
    assert server_address.plain_properties("b:2", None)["bootstrap.servers"] == "b:2"


def test_the_same_line_of_librdkafka_is_logged_once_in_a_while() -> None:
    lines = server_address.NewLines()

    def passes(text: str, at: float) -> bool:
        line = logging.LogRecord("x", logging.ERROR, "", 0, text, None, None)
        line.created = at
        return lines.filter(line)

    assert passes("consumer-1: connection refused after 3 ms", 1000)
    assert not passes("consumer-2: connection refused after 17 ms", 1001)
    assert passes("connection closed", 1002)
    assert not passes("SHARECONSUMER: a preview", 1003)
    assert passes("consumer-1: connection refused after 3 ms", 1010)
    for number in range(2 * server_address.MOST_KNOWN):
        assert passes("x" * number, 1011)
    assert len(lines._logged_at) <= server_address.MOST_KNOWN
