"""``skep groups``, ``skep consume --group`` and ``kafka-consumer-groups`` against a real broker."""

import io
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka import Consumer, TopicPartition
from typer.testing import CliRunner, Result

from skep.cli.failures import CommandError
from skep.cli.kafka import kafka_console_consumer, kafka_consumer_groups
from skep.cli.main import app
from skep.testing import EmbeddedBroker
from tests.waiting import wait_until

SKEP = [sys.executable, "-m", "skep.cli.main"]
PARTITIONS = 3
RECORDS = 10
"""In each partition."""


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker() as running:
        yield running


@pytest.fixture(autouse=True)
def bootstrap(broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SKEP_BOOTSTRAP", broker.bootstrap_servers)


@pytest.fixture
def group() -> str:
    return f"group-{uuid4().hex[:8]}"


@pytest.fixture
def topic(bootstrap: None) -> str:
    """With ten records in each of three partitions."""
    name = f"topic-{uuid4().hex[:8]}"
    done("topics", "create", name, "-p", PARTITIONS)
    for partition in range(PARTITIONS):
        lines = b"".join(b"%d-%d\n" % (partition, number) for number in range(RECORDS))
        done("produce", name, "-p", partition, stdin=lines)
    return name


def skep(*arguments: object, stdin: bytes | None = None) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments], input=stdin)


def done(*arguments: object, stdin: bytes | None = None) -> str:
    """What a command printed that went well."""
    result = skep(*arguments, stdin=stdin)
    assert result.exit_code == 0, result.output
    return result.stdout


def failed(*arguments: object) -> str:
    """The one line of a command that could not be done."""
    result = skep(*arguments)
    assert isinstance(result.exception, CommandError), result.output
    assert "\n" not in str(result.exception)
    return str(result.exception)


def kafka(broker: EmbeddedBroker, capfd: pytest.CaptureFixture[str], line: str) -> list[str]:
    """What kafka-consumer-groups printed, without empty lines."""
    capfd.readouterr()
    kafka_consumer_groups.execute(["--bootstrap-server", broker.bootstrap_servers, *line.split()])
    return [text for text in capfd.readouterr().out.splitlines() if text]


def commit(broker: EmbeddedBroker, group: str, topic: str, *offsets: int) -> None:
    """What a standalone consumer of the group would commit of the first partitions."""
    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": group})
    places = [TopicPartition(topic, partition, offset) for partition, offset in enumerate(offsets)]
    consumer.commit(offsets=places, asynchronous=False)
    consumer.close()


def offsets_of(group: str) -> list[int]:
    return [row["offset"] for row in json.loads(done("groups", "export", group, "--json"))]


def described(group: str) -> dict[str, Any]:
    [document] = json.loads(done("groups", "describe", group, "--json"))
    assert isinstance(document, dict)
    return document


def members_with_partitions(group: str) -> list[dict[str, Any]]:
    """None while the group is not there yet."""
    result = skep("groups", "describe", group, "--members", "--json")
    documents = json.loads(result.stdout) if result.exit_code == 0 else []
    return [member for document in documents for member in document["members"] if member["assignment"]]


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_member_goes_on_where_its_group_was(topic: str, group: str, protocol: str) -> None:
    member = ("consume", topic, "--group", group, "-X", f"group.protocol={protocol}")
    first = done(*member, "-n", 7).split()
    rest = done(*member).split()
    assert len(first) == 7
    everything = [f"{p}-{n}" for p in range(PARTITIONS) for n in range(RECORDS)]
    assert sorted(first + rest, key=lambda value: (value[0], int(value[2:]))) == everything
    assert done(*member) == ""
    assert described(group)["lag"] == 0
    assert described(group)["type"] == protocol.title()
    assert offsets_of(group) == [RECORDS] * PARTITIONS


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_live_member_is_shown_with_what_it_reads_and_guards_its_offsets(
    broker: EmbeddedBroker, topic: str, group: str, protocol: str, capfd: pytest.CaptureFixture[str]
) -> None:
    arguments = ["consume", topic, "-g", group, "--follow", "--from-beginning", "-X", f"group.protocol={protocol}"]
    with subprocess.Popen(
        [*SKEP, *arguments, "-X", "client.id=till"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as following:
        assert following.stdout is not None
        assert following.stderr is not None
        for _ in range(PARTITIONS * RECORDS):
            following.stdout.readline()
        wait_until(lambda: offsets_of(group) == [RECORDS] * PARTITIONS, "what was printed is committed")
        document = wait_until(lambda: (d := described(group))["state"] == "Stable" and d, "the group is stable")
        [member] = document["members"]
        assert (member["client_id"], len(member["assignment"])) == ("till", PARTITIONS)
        assert [(row["lag"], row["client_id"]) for row in document["partitions"]] == [(0, "till")] * PARTITIONS

        table = done("groups", "describe", group)
        assert table.startswith(f"{group}  Stable  {protocol.title()}  1 member  lag 0\n")
        assert "till" in done("groups", "describe", group, "--members")
        assert f"{topic}-2" in done("groups", "describe", group, "--members")
        assert "Stable" in done("groups", "describe", group, "--state")
        assert group in done("groups", "list", "--state", "stable", "--type", protocol)
        assert group not in done("groups", "list", "--state", "empty")

        heading, *rows = kafka(broker, capfd, f"--describe --group {group}")
        assert heading.split()[-3:] == ["CONSUMER-ID", "HOST", "CLIENT-ID"]
        assert [row.split()[2:6] for row in rows] == [[str(p), "10", "10", "0"] for p in range(PARTITIONS)]
        [_, member_row] = kafka(broker, capfd, f"--describe --group {group} --members --verbose")
        assert f"{topic}:0,1,2" in member_row

        told = failed("groups", "reset-offsets", group, "--all-topics", "--to-earliest", "--execute")
        assert told.startswith(f"group '{group}' has 1 active member (state Stable)")
        assert "cannot delete group" in failed("groups", "delete", group)
        assert "cannot delete the offset of" in failed("groups", "delete-offsets", group, topic)
        assert offsets_of(group) == [RECORDS] * PARTITIONS

        following.send_signal(signal.SIGINT)
        assert (following.stderr.read(), following.wait()) == (b"", 130)
    wait_until(lambda: described(group)["state"] == "Empty", "a member that is ended leaves its group")


def test_two_members_share_the_partitions(topic: str, group: str) -> None:
    arguments = [*SKEP, "consume", topic, "--group", group, "--follow", "--from-beginning"]
    with (
        subprocess.Popen(arguments, stdout=subprocess.PIPE) as first,
        subprocess.Popen(arguments, stdout=subprocess.PIPE) as second,
    ):
        try:
            members = wait_until(
                lambda: len(found := members_with_partitions(group)) == 2 and found, "both members have partitions"
            )
            owned = [(place["topic"], place["partition"]) for m in members for place in m["assignment"]]
            assert sorted(owned) == [(topic, partition) for partition in range(PARTITIONS)]
            # The sum counts only partitions with a committed offset; one of them may have none yet.
            wait_until(
                lambda: [row["lag"] for row in described(group)["partitions"]] == [0] * PARTITIONS,
                "all is read and committed",
            )
        finally:
            for member in (first, second):
                member.send_signal(signal.SIGINT)
        printed = [line for member in (first, second) for line in member.communicate()[0].split()]
        assert {first.returncode, second.returncode} == {130}
    assert set(printed) == {b"%d-%d" % (p, n) for p in range(PARTITIONS) for n in range(RECORDS)}


def test_a_reset_is_shown_first_and_done_when_asked_for(broker: EmbeddedBroker, topic: str, group: str) -> None:
    commit(broker, group, topic, 5, 5, 5)
    reset = ("groups", "reset-offsets", group, "--topic")
    result = skep(*reset, topic, "--to-earliest")
    assert [line.split() for line in result.stdout.splitlines()] == [
        ["topic", "partition", "old", "new"],
        *([topic, str(partition), "5", "0"] for partition in range(PARTITIONS)),
    ]
    assert "Nothing was changed; add --execute" in result.stderr
    assert offsets_of(group) == [5, 5, 5]

    done(*reset, f"{topic}:0,2", "--to-latest", "--execute")
    assert offsets_of(group) == [10, 5, 10]
    done("groups", "reset-offsets", group, "--all-topics", "--shift-by", -3, "--execute")
    assert offsets_of(group) == [7, 2, 7]
    done(*reset, topic, "--to-offset", 4, "--execute")
    assert offsets_of(group) == [4, 4, 4]
    done(*reset, f"{topic}:1", "--by-duration", "1h", "--execute")
    assert offsets_of(group) == [4, 0, 4]
    done(*reset, topic, "--to-current", "--execute")
    assert offsets_of(group) == [4, 0, 4]
    clamped = skep(*reset, topic, "--to-offset", 1000, "--json")
    assert [row["new"] for row in json.loads(clamped.stdout)["offsets"]] == [10, 10, 10]
    assert f"warning: offset 1000 is past the end of {topic}-0; using its log end offset 10" in clamped.stderr


def test_a_reset_by_time_goes_to_the_first_record_from_then_on(broker: EmbeddedBroker, topic: str, group: str) -> None:
    shown = [json.loads(line) for line in done("consume", topic, "-p", 0, "--json").splitlines()]
    moment = shown[5]["timestamp"]
    first = next(record["offset"] for record in shown if record["timestamp"] >= moment)
    done("groups", "reset-offsets", group, "-t", f"{topic}:0", "--to-datetime", moment, "--execute")
    assert offsets_of(group) == [first]
    late = skep("groups", "reset-offsets", group, "-t", f"{topic}:0", "--to-datetime", moment + 86_400_000)
    assert late.stdout.split()[-1] == "10"
    assert "no record at or after that time" in late.stderr


def test_what_is_exported_is_what_a_reset_reads_back(
    broker: EmbeddedBroker, topic: str, group: str, tmp_path: Path
) -> None:
    commit(broker, group, topic, 1, 2, 3)
    other = f"{group}-2"
    commit(broker, other, topic, 7)
    file = tmp_path / "offsets.csv"
    file.write_text(done("groups", "export", group))
    assert file.read_text() == f"{topic},0,1\n{topic},1,2\n{topic},2,3\n"
    done("groups", "reset-offsets", group, "--all-topics", "--to-latest", "--execute")
    done("groups", "reset-offsets", group, "--from-file", file, "--execute")
    assert offsets_of(group) == [1, 2, 3]

    file.write_text(done("groups", "export", group, other))
    assert f"{other},{topic},0,7\n" in file.read_text()
    assert "has no offsets of group 'nobody'" in failed("groups", "reset-offsets", "nobody", "--from-file", file)
    file.write_text(f"{topic},9,1\n")
    assert "has no partition 9" in failed("groups", "reset-offsets", group, "--from-file", file)


def test_groups_and_single_offsets_are_deleted(broker: EmbeddedBroker, topic: str, group: str) -> None:
    commit(broker, group, topic, 1, 2, 3)
    assert done("groups", "delete-offsets", group, f"{topic}:1") == f"Deleted 1 offset of group {group}.\n"
    assert offsets_of(group) == [1, 3]
    assert done("groups", "delete", group) == f"Deleted group {group}.\n"
    assert failed("groups", "describe", group).startswith(f"there is no group '{group}'")
    assert failed("groups", "delete", group).startswith(f"cannot delete group '{group}': ")


def test_a_group_that_is_not_there_is_named_with_those_that_are_close(
    broker: EmbeddedBroker, topic: str, group: str
) -> None:
    commit(broker, group, topic, 1)
    assert f"; did you mean {group}" in failed("groups", "describe", group[:-1] + "_")
    assert failed("groups", "delete-offsets", "nobody", topic).startswith("there is no group 'nobody'")


def test_a_deleted_topic_does_not_hide_the_rest_of_the_group(broker: EmbeddedBroker, topic: str, group: str) -> None:
    commit(broker, group, topic, 4)
    gone = f"{topic}-gone"
    done("topics", "create", gone)
    commit(broker, group, gone, 0)
    done("topics", "delete", gone)
    rows = described(group)["partitions"]
    assert isinstance(rows, list)
    assert {"topic": topic, "lag": 6}.items() <= rows[0].items()
    done("groups", "reset-offsets", group, "--all-topics", "--to-earliest", "--execute")
    assert offsets_of(group)[0] == 0


def test_kafkas_command_resets_deletes_and_lists(
    broker: EmbeddedBroker, topic: str, group: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    commit(broker, group, topic, 5, 5, 5)
    assert group in kafka(broker, capfd, "--list")
    [heading, *rows] = kafka(broker, capfd, "--list --state empty --type classic")
    assert heading.split() == ["GROUP", "TYPE", "STATE"]
    assert [group, "Classic", "Empty"] in [row.split() for row in rows]
    dry = kafka(broker, capfd, f"--reset-offsets --group {group} --topic {topic} --to-earliest")
    assert [row.split() for row in dry[1:]] == [[group, topic, str(p), "0"] for p in range(PARTITIONS)]
    assert offsets_of(group) == [5, 5, 5]
    exported = kafka(broker, capfd, f"--reset-offsets --group {group} --all-topics --shift-by -2 --export --dry-run")
    assert exported == [f"{topic},{partition},3" for partition in range(PARTITIONS)]
    file = tmp_path / "plan.csv"
    file.write_text("\n".join(exported))
    kafka(broker, capfd, f"--reset-offsets --group {group} --from-file {file} --execute")
    assert offsets_of(group) == [3, 3, 3]
    deleted = kafka(broker, capfd, f"--delete-offsets --group {group} --topic {topic}:0")
    assert deleted[0] == f"Request succeeded for deleting offsets from group {group}."
    [_, state] = kafka(broker, capfd, f"--describe --group {group} --state")
    assert state.split()[-2:] == ["Empty", "0"]
    assert kafka(broker, capfd, f"--delete --group {group}") == [
        f"Deletion of requested consumer groups ('{group}') was successful."
    ]


def test_kafkas_console_consumer_is_a_member_of_its_group(
    broker: EmbeddedBroker,
    topic: str,
    group: str,
    monkeypatch: pytest.MonkeyPatch,
    capfdbinary: pytest.CaptureFixture[bytes],
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    there = ["--bootstrap-server", broker.bootstrap_servers, "--topic", topic, "--from-beginning"]
    kafka_console_consumer.execute([*there, "--group", group, "--max-messages", "12"])
    rest = str(PARTITIONS * RECORDS - 12)
    kafka_console_consumer.execute([*there, "--consumer-property", f"group.id={group}", "--max-messages", rest])
    shown = capfdbinary.readouterr()
    assert len(shown.out.split()) == len(set(shown.out.split())) == PARTITIONS * RECORDS
    assert b"Processed a total of 12 messages\nProcessed a total of 18 messages\n" in shown.err
    assert offsets_of(group) == [RECORDS] * PARTITIONS
