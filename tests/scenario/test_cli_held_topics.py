"""``skep queues scheduled`` and ``recall`` against a real broker."""

import json
import os
import signal
from collections.abc import Iterator

import pytest
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic
from typer.testing import CliRunner, Result

from skep.cli.failures import CommandError
from skep.cli.main import app
from skep.testing import EmbeddedBroker
from tests.scenario.held_history import HELD, TARGET, Reader, Writer, create_held, worker_pid
from tests.waiting import wait_until


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(options={"auto.create.topics.enable": "false"}) as running:
        create_held(running.bootstrap_servers, partitions=3)
        yield running


@pytest.fixture(autouse=True)
def bootstrap(broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SKEP_BOOTSTRAP", broker.bootstrap_servers)


def skep(*arguments: str) -> Result:
    result = CliRunner().invoke(app, ["queues", *arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def listed() -> dict[str, dict]:
    return {one["key"]: one for one in json.loads(skep("scheduled", HELD, "--json").stdout)}


def test_what_waits_is_listed_and_can_be_recalled(broker: EmbeddedBroker) -> None:
    writer = Writer(broker.bootstrap_servers)
    writer.write("b", b"later", delay_ms=7_200_000)
    writer.write("a", b"sooner", delay_ms=3_600_000 + 600_000)
    writer.write("beat", b"x", schedule="0 9 * * *", schedule_zone="Europe/Berlin")
    writer.write("half", b"x")
    writer.write("bad", b"x", delay_ms="soon")
    writer.flush()
    found = listed()
    assert list(found)[-2:] in (["half", "bad"], ["bad", "half"])
    assert {key: one["state"] for key, one in found.items()} == {
        "a": "once",
        "b": "once",
        "beat": "schedule",
        "half": "half",
        "bad": "invalid",
    }
    lines = skep("scheduled", HELD).stdout.splitlines()
    assert lines[0].split() == ["key", "due", "in", "what", "partition", "offset", "bytes"]
    assert any("1h" in line and line.startswith("a ") for line in lines)
    assert any("0 9 * * * Europe/Berlin" in line for line in lines)
    assert any("invalid: delay-ms is not a number of milliseconds: 'soon'" in line for line in lines)
    assert len(skep("scheduled", HELD, "--limit", "2").stdout.splitlines()) == 3
    assert skep("recall", HELD, "a", "bad").stdout.count("Recalled") == 2
    assert sorted(listed()) == ["b", "beat", "half"]
    with pytest.raises(CommandError, match=r"nothing waits in orders.later under the key 'a'"):
        skep("recall", HELD, "a")
    skep("recall", HELD, "b", "beat", "half")
    assert "Nothing waits" in skep("scheduled", HELD).stderr


NOT_FOLLOWED = {
    "year 9999": ({"deliver_at": "9999-12-31T23:59:59Z"}, "skep.held.max.delay.ms is 31536000000"),
    "ages": ({"delay_ms": 9 * 10**17}, "skep.held.max.delay.ms is"),
    "no number": ({"delay_ms": "soon"}, "delay-ms is not a number of milliseconds: 'soon'"),
    "no moment": ({"deliver_at": "tomorrow"}, "deliver-at is neither milliseconds nor a time"),
    "two times": ({"deliver_at": 1, "delay_ms": 1}, "only one of deliver-at and delay-ms"),
    "never": ({"schedule": "0 0 30 2 *"}, "the cron line never fires"),
    "no line": ({"schedule": "often"}, "a cron line has 5 or 6 fields"),
    "too often": ({"schedule": "@every 10ms"}, "the time must be from 1 s"),
    "no zone": ({"schedule": "* * * * *", "schedule_zone": "Mars/Base"}, "there is no zone 'Mars/Base'"),
    "no question": ({"check_topic": "q", "check_after_ms": "x"}, "check-after-ms is not a number"),
    "itself": ({"check_topic": HELD}, "check-topic is orders.later, the held topic itself"),
    "target": ({"check_topic": TARGET}, "check-topic is orders, the target"),
}


def test_what_cannot_be_followed_says_why_and_what_is_past_is_released_at_once(broker: EmbeddedBroker) -> None:
    writer, target = Writer(broker.bootstrap_servers), Reader(broker.bootstrap_servers, TARGET, 2)
    for key, (headers, _) in NOT_FOLLOWED.items():
        writer.write(key, b"x", **headers)
    writer.write("1970", b"1970", deliver_at=0)
    writer.write("before", b"before", delay_ms=-(10**17))
    writer.flush()
    target.until(lambda found: {b"1970", b"before"} <= {message.value() for message in found}, "the past is released")
    target.close()
    # The transaction ends in one partition after the other.
    wait_until(lambda: not {"1970", "before"} & listed().keys(), "their tombstones are committed")
    found = listed()
    assert {key: one["state"] for key, one in found.items()} == dict.fromkeys(NOT_FOLLOWED, "invalid")
    for key, (_, reason) in NOT_FOLLOWED.items():
        assert reason in found[key]["what"], key
    for key in NOT_FOLLOWED:
        writer.write(key, None)
    writer.flush()


def set_option(broker: EmbeddedBroker, topic: str, name: str, value: str) -> None:
    entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource("topic", topic, incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    admin.incremental_alter_configs([resource])[resource].result()


def test_what_was_refused_is_shown_with_the_reason(broker: EmbeddedBroker) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    held = [NewTopic(topic, 1, config={"skep.held.target": "small"}) for topic in ("small.later", "other.later")]
    for created in admin.create_topics(held).values():
        created.result()
    set_option(broker, "small.later", "skep.held.max.firings.per.second", "2")
    writer = Writer(broker.bootstrap_servers, "small.later")
    writer.write("large", b"x" * 2000, delay_ms=0)
    writer.write("large later", b"x" * 2000, delay_ms=3_600_000)
    writer.write("unknown", b"x", check_topic="nowhere", check_after_ms=1000)
    writer.write("held", b"x", check_topic="other.later", check_after_ms=1000)
    for number in range(4):
        writer.write(f"beat {number}", b"x", schedule="@every 1s")
    writer.flush()

    def scheduled() -> dict[str, dict]:
        return {one["key"]: one for one in json.loads(skep("scheduled", "small.later", "--json").stdout)}

    assert scheduled()["large"]["what"] == "once; cannot be released: topic small does not exist"
    assert "The target small does not exist, and records wait until it does" in skep("scheduled", "small.later").stderr
    admin.create_topics([NewTopic("small", 1, config={"max.message.bytes": "1000"})])["small"].result()

    def refused() -> set[str]:
        return {key for key, one in scheduled().items() if one["state"] == "invalid"}

    wait_until(lambda: len(refused()) == 2, "two of four schedules are refused")
    too_many = "the schedules of small.later-0 would fire more than 2 times a second (skep.held.max.firings.per.second)"
    assert {scheduled()[key]["what"] for key in refused()} == {f"invalid: {too_many}"}
    asked = "waits for its commit; no question is sent: check-topic is other.later, a held topic"
    wait_until(lambda: scheduled()["held"]["what"] == asked, "it says why nobody is asked about it")
    found = scheduled()
    assert found["large"]["obstacle"].endswith(" bytes are more than max.message.bytes=1000 of small")
    assert found["large later"]["obstacle"].endswith(" bytes are more than max.message.bytes=1000 of small")
    assert found["unknown"]["obstacle"] == "topic nowhere does not exist"
    assert " late " in skep("scheduled", "small.later").stdout
    assert len(refused()) == 2


def test_a_recall_that_comes_too_late_says_so(broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker releases the record after the command has found it, and before its tombstone."""
    from skep.cli.queues import scheduled_commands

    writer, target = Writer(broker.bootstrap_servers), Reader(broker.bootstrap_servers, TARGET, 2)
    pid = wait_until(lambda: worker_pid(broker.pid), "there is a worker")
    write = scheduled_commands._write_tombstone

    def release_first(*arguments: object) -> int:
        os.kill(pid, signal.SIGCONT)
        target.until(lambda found: any(message.value() == b"slow" for message in found), "it is released")
        return write(*arguments)

    monkeypatch.setattr(scheduled_commands, "_write_tombstone", release_first)
    # Frozen, the worker leaves the record where the command finds it, however long that takes.
    os.kill(pid, signal.SIGSTOP)
    try:
        writer.write("slow", b"slow", delay_ms=0)
        writer.flush()
        with pytest.raises(CommandError, match="too late: 'slow' was released before it was recalled"):
            skep("recall", HELD, "slow")
    finally:
        os.kill(pid, signal.SIGCONT)
    target.close()


def test_a_worker_that_was_killed_comes_back_and_releases(broker: EmbeddedBroker) -> None:
    pid = wait_until(lambda: worker_pid(broker.pid), "there is a worker")
    os.kill(pid, signal.SIGKILL)
    writer, target = Writer(broker.bootstrap_servers), Reader(broker.bootstrap_servers, TARGET, 2)
    writer.write("again", b"again", delay_ms=0)
    writer.flush()
    target.until(lambda found: any(message.value() == b"again" for message in found), "it is released")
    target.close()
    wait_until(lambda: "the worker process ended with exit code -9" in broker.log, "the broker says so")


def test_an_ordinary_topic_is_not_a_held_topic() -> None:
    for command in (("scheduled", TARGET), ("recall", TARGET, "k")):
        with pytest.raises(CommandError, match=r"'orders' is not a held topic: skep.held.target is not set"):
            skep(*command)
    with pytest.raises(CommandError, match=r"no topic 'nowhere'|does not exist"):
        skep("scheduled", "nowhere")
