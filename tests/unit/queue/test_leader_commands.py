"""Commands to leaders that cannot be sent: a record is acknowledged all the same."""

import logging
from typing import Any

import pytest

from skep.base.errors import ErrorCode, KafkaError
from skep.client.errors import TimedOut, Unsupported
from skep.client.security.client_security import ClientSecurity
from skep.queue import leader_commands
from skep.queue.delivery import Delivery
from skep.queue.leader_commands import LeaderCommands
from skep.queue.message import ACCEPTED, Message, Outcome, Verdict
from skep.queue.statistics import Counters

CLIENT = {"bootstrap.servers": "127.0.0.1:1"}


class Leader:
    """Takes the place of the brokers: notes the commands, and raises what it is told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.commands: list[tuple[str, int, str, dict[str, Any]]] = []
        self.error: Exception | None = None
        self.lost: list[int] = []
        monkeypatch.setattr(leader_commands, "command_to_leader", self.command)

    def command(self, cluster: object, topic: str, partition: int, name: str, arguments: dict[str, Any]) -> Any:
        self.commands.append((topic, partition, name, arguments))
        if self.error is not None:
            raise self.error
        return {"lost": self.lost}


@pytest.fixture
def leader(monkeypatch: pytest.MonkeyPatch) -> Leader:
    return Leader(monkeypatch)


def delivery(offset: int, verdict: Verdict | None = None, partition: int = 0) -> Delivery:
    found = Delivery(Message("jobs", partition, offset, None, None, (), 0, 2), Counters(), lambda one: None)
    found.verdict = verdict
    return found


def failed(offset: int) -> Delivery:
    return delivery(offset, Verdict(Outcome.RETRY, "why"))


def test_reasons_and_delays_are_told_of_those_that_have_one(leader: Leader) -> None:
    later = delivery(3, Verdict(Outcome.RETRY, "later", 1500))
    LeaderCommands(CLIENT, "g").tell([delivery(1, ACCEPTED), delivery(2, Verdict(Outcome.REJECT, "bad")), later])
    assert leader.commands == [
        ("jobs", 0, "delay", {"group": "g", "offset": 2, "text": "bad"}),
        ("jobs", 0, "delay", {"group": "g", "offset": 3, "text": "later", "delay_ms": 1500}),
    ]


def test_renewals_are_sent_by_partition_and_tell_what_is_lost(leader: Leader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leader_commands, "MOST_RENEWED", 2)
    held = [delivery(offset) for offset in range(3)] + [delivery(7, partition=1)]
    leader.lost = [1]
    assert LeaderCommands(CLIENT, "g").renew(held) == {held[1]}
    assert leader.commands == [
        ("jobs", 0, "renew", {"group": "g", "deliveries": [[0, 2], [1, 2]]}),
        ("jobs", 0, "renew", {"group": "g", "deliveries": [[2, 2]]}),
        ("jobs", 1, "renew", {"group": "g", "deliveries": [[7, 2]]}),
    ]


def test_a_broker_without_the_commands_is_asked_once(leader: Leader, caplog: pytest.LogCaptureFixture) -> None:
    commands = LeaderCommands(CLIENT, "g")
    leader.error = Unsupported("another broker")
    commands.tell([failed(1), failed(2)])
    commands.tell([failed(3)])
    assert commands.renew([delivery(1)]) is None
    assert commands.renew([delivery(1)]) is None
    assert [name for _, _, name, _ in leader.commands] == ["delay", "renew"]
    assert caplog.text.count("another broker") == 2


def test_a_silent_broker_is_not_waited_for_again_and_again(leader: Leader) -> None:
    commands = LeaderCommands(CLIENT, "g")
    leader.error = TimedOut("no answer")
    commands.tell([failed(1), failed(2)])
    assert len(leader.commands) == 1
    assert commands.renew([delivery(1)]) is None
    leader.error = None
    commands.tell([failed(1), failed(2)])
    assert commands.renew([delivery(1)]) == set()


def test_a_lock_that_has_expired_is_no_news(leader: Leader, caplog: pytest.LogCaptureFixture) -> None:
    leader.error = KafkaError(ErrorCode.invalid_record_state, "not held")
    with caplog.at_level(logging.DEBUG):
        LeaderCommands(CLIENT, "g").tell([failed(1), failed(2)])
    assert len(leader.commands) == 2
    assert caplog.text == ""


def test_the_security_settings_are_those_of_the_consumer(leader: Leader, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[ClientSecurity] = []
    monkeypatch.setattr(leader_commands, "ClusterClient", lambda *_, security, **__: made.append(security))
    settings = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.username": "u"}
    LeaderCommands({**CLIENT, **settings, "sasl.password": "p"}, "g").renew([delivery(1)])
    assert made == [ClientSecurity.of({**settings, "sasl.password": "p"})]
