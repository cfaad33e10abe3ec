"""What a parent knows of a broker in a process of its own."""

import pytest

from skep.broker_process import command, how_it_ended, ready_address


def test_the_ready_line_has_the_address() -> None:
    assert ready_address("skep: broker 2 ready on 127.0.0.1:9093, data in /a, b\n") == ("127.0.0.1", 9093)
    assert ready_address("2024-01-01 INFO recovered 3 logs\n") is None


def test_options_are_not_in_the_list_of_processes() -> None:
    secret = {"node.id": "2", "listeners": "127.0.0.1:0", "skep.zookeeper.auth": "digest:me:secret"}
    assert command(secret)[1:] == ["-m", "skep.embedded", "node.id=2", "listeners=127.0.0.1:0"]


@pytest.mark.parametrize(
    ("exit_code", "words"),
    [(0, "ended with exit code 0"), (2, "ended with exit code 2"), (-9, "was killed by SIGKILL")],
)
def test_how_a_process_ended_is_told_in_words(exit_code: int, words: str) -> None:
    assert how_it_ended(exit_code) == words
