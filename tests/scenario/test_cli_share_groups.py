"""``skep groups`` and ``kafka-share-groups`` with share groups, against a real broker."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from typer.testing import CliRunner, Result

from skep.base.errors import ErrorCode
from skep.cli.failures import CommandError, UsageError
from skep.cli.kafka import kafka_consumer_groups, kafka_share_groups
from skep.cli.main import app
from skep.testing import EmbeddedBroker
from skep.wire import apis
from tests.raw_client import RawClient
from tests.raw_requests import batch_of
from tests.waiting import wait_until


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker() as running:
        yield running


@pytest.fixture(autouse=True)
def bootstrap(broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SKEP_BOOTSTRAP", broker.bootstrap_servers)


@pytest.fixture
def client(broker: EmbeddedBroker) -> Iterator[RawClient]:
    with RawClient(broker.bootstrap_servers) as client:
        yield client


@pytest.fixture
def topic(client: RawClient) -> str:
    """With five records in the second of two partitions."""
    name = f"topic-{uuid4().hex[:8]}"
    client.create_topic(name, 2)
    client.append(name, batch_of(*(b"x",) * 5), partition=1)
    return name


@pytest.fixture
def group(client: RawClient) -> str:
    name = f"group-{uuid4().hex[:8]}"
    client.ask(apis.FIND_COORDINATOR, 6, key_type=0, coordinator_keys=[name])
    return name


def beat(client: RawClient, group: str, epoch: int, **said: Any) -> Any:
    body = {"group_id": group, "member_id": "member-1", "member_epoch": epoch, **said}
    response = client.ask(apis.SHARE_GROUP_HEARTBEAT, 1, **body)
    assert response.error_code is ErrorCode.none, response.error_message
    return response


@pytest.fixture
def member(client: RawClient, group: str, topic: str) -> str:
    """To which both partitions are assigned. On a busy machine the first response does not wait for their state."""
    epoch = 0

    def is_assigned() -> bool:
        nonlocal epoch
        response = beat(client, group, epoch, subscribed_topic_names=[topic])
        epoch = response.member_epoch
        return response.assignment is not None and bool(response.assignment.topic_partitions)

    wait_until(is_assigned, "the partitions are assigned")
    return "member-1"


@pytest.fixture
def empty(client: RawClient, group: str, topic: str) -> str:
    """A share group without members that starts at the second record of the second partition."""
    starts = [{"partition_index": 0, "start_offset": 0}, {"partition_index": 1, "start_offset": 1}]
    topics = [{"topic_name": topic, "partitions": starts}]
    assert client.ask(apis.ALTER_SHARE_GROUP_OFFSETS, 0, group_id=group, topics=topics).error_code is ErrorCode.none
    return group


def skep(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def done(*arguments: object) -> str:
    """What a command printed that went well."""
    result = skep(*arguments)
    assert result.exit_code == 0, (result.output, result.exception)
    return result.stdout


def failed(*arguments: object) -> str:
    result = skep(*arguments)
    assert isinstance(result.exception, CommandError | UsageError), result.output
    return str(result.exception)


def kafka(broker: EmbeddedBroker, capfd: pytest.CaptureFixture[str], line: str, tool: Any = kafka_share_groups) -> Any:
    """The words of what the command printed, line by line, without empty lines."""
    capfd.readouterr()
    tool.execute(["--bootstrap-server", broker.bootstrap_servers, *line.split()])
    return [text.split() for text in capfd.readouterr().out.splitlines() if text]


# skep groups.


def test_share_groups_are_listed_with_their_type(group: str, member: str) -> None:
    listed = {row["group"]: (row["state"], row["type"]) for row in json.loads(done("groups", "list", "--json"))}
    assert listed[group] == ("Stable", "Share")
    assert group in done("groups", "list", "--type", "share")
    assert group in done("groups", "list", "--type", "share", "--type", "classic", "--state", "stable")
    assert group not in done("groups", "list", "--type", "classic")
    assert group not in done("groups", "list", "--type", "share", "--state", "Empty")
    assert "Classic, Consumer, Share" in failed("groups", "list", "--type", "queue")


def test_a_share_group_is_described(group: str, member: str, topic: str) -> None:
    shown = done("groups", "describe", group, "--members")
    assert f"{group}  Stable  Share  1 member" in shown
    assert f"{topic}-0 {topic}-1" in shown
    [state] = json.loads(done("groups", "describe", group, "--state", "--json"))
    assert (state["type"], state["assignor"]) == ("Share", "simple")
    # Nobody has read yet, so share.auto.offset.reset has not chosen a start.
    lines = done("groups", "describe", group).splitlines()
    assert lines[1].split() == ["topic", "partition", "start", "log", "end", "lag", "in", "flight"]
    assert lines[2].split() == [topic, "0", "-", "0", "-", "0"]


def test_the_lag_of_a_share_group(empty: str, topic: str) -> None:
    lines = [line.split() for line in done("groups", "describe", empty).splitlines()]
    assert lines[2:] == [[topic, "0", "0", "0", "0", "0"], [topic, "1", "1", "5", "4", "0"]]
    [document] = json.loads(done("groups", "describe", empty, "--json"))
    assert (document["lag"], [row["lag"] for row in document["partitions"]]) == (4, [0, 4])


def test_the_offsets_of_a_share_group_are_exported_and_reset(empty: str, topic: str, tmp_path: Path) -> None:
    exported = done("groups", "export", empty)
    assert exported.splitlines() == [f"{topic},0,0", f"{topic},1,1"]
    file = tmp_path / "offsets.csv"
    file.write_text(exported)
    done("groups", "reset-offsets", empty, "--topic", topic, "--to-latest")
    assert done("groups", "export", empty) == exported
    done("groups", "reset-offsets", empty, "--topic", topic, "--to-latest", "--execute")
    assert done("groups", "export", empty).splitlines() == [f"{topic},0,0", f"{topic},1,5"]
    done("groups", "reset-offsets", empty, "--from-file", file, "--execute")
    assert done("groups", "export", empty) == exported


def test_offsets_of_a_share_group_with_members_are_not_changed(group: str, member: str, topic: str) -> None:
    assert "active member" in failed("groups", "reset-offsets", group, "--topic", topic, "--to-latest", "--execute")
    assert "non empty group" in failed("groups", "delete-offsets", group, topic)
    assert "cannot delete group" in failed("groups", "delete", group)


def test_a_share_group_and_its_offsets_are_deleted(empty: str, topic: str) -> None:
    assert "without partitions" in failed("groups", "delete-offsets", empty, f"{topic}:0")
    done("groups", "delete-offsets", empty, topic)
    assert "no partitions" in done("groups", "describe", empty)
    assert "no offset information" in failed("groups", "delete-offsets", empty, topic)
    assert f"Deleted group {empty}." in done("groups", "delete", empty)
    assert "there is no group" in failed("groups", "describe", empty)
    assert "there is no group" in failed("groups", "delete-offsets", empty, topic)


# kafka-share-groups.


def test_kafka_share_groups_lists_only_share_groups(broker, capfd, group: str, member: str) -> None:
    assert [group] in kafka(broker, capfd, "--list")
    assert ["GROUP", "STATE"] in kafka(broker, capfd, "--list --state")
    assert [group, "Stable"] in kafka(broker, capfd, "--list --state stable,Empty")
    assert [group, "Stable"] not in kafka(broker, capfd, "--list --state Empty")
    assert [group] not in kafka(broker, capfd, "--list", kafka_consumer_groups)


def test_kafka_share_groups_describes(broker, capfd, group: str, member: str, topic: str) -> None:
    address = broker.bootstrap_servers
    members = kafka(broker, capfd, f"--describe --group {group} --members --verbose")
    assert members[0] == ["GROUP", "CONSUMER-ID", "HOST", "CLIENT-ID", "#PARTITIONS", "MEMBER-EPOCH", "ASSIGNMENT"]
    assert members[1][:5] == [group, member, "/127.0.0.1", "raw", "2"]
    assert members[1][6] == f"{topic}:0,1"
    state = kafka(broker, capfd, f"--describe --group {group} --state")
    assert state == [["GROUP", "COORDINATOR", "(ID)", "STATE", "#MEMBERS"], [group, address, "(1)", "Stable", "1"]]
    verbose = kafka(broker, capfd, "--describe --all-groups --state --verbose")
    assert ["GROUP", "COORDINATOR", "(ID)", "STATE", "GROUP-EPOCH", "ASSIGNMENT-EPOCH", "#MEMBERS"] in verbose
    offsets = kafka(broker, capfd, f"--describe --group {group}")
    assert offsets[:2] == [["GROUP", "TOPIC", "PARTITION", "START-OFFSET", "LAG"], [group, topic, "0", "-", "-"]]


def test_kafka_share_groups_resets_and_deletes(broker, capfd, empty: str, topic: str) -> None:
    assert kafka(broker, capfd, f"--describe --group {empty} --offsets --verbose")[2] == [
        empty,
        topic,
        "1",
        "0",
        "1",
        "4",
    ]
    reset = f"--group {empty} --reset-offsets --topic {topic}:1"
    plan = [["GROUP", "TOPIC", "PARTITION", "NEW-OFFSET"], [empty, topic, "1", "0"]]
    assert kafka(broker, capfd, f"{reset} --to-earliest --dry-run") == plan
    assert kafka(broker, capfd, f"{reset} --to-earliest --execute") == plan
    assert kafka(broker, capfd, f"--describe --group {empty}")[2][3:] == ["0", "5"]
    exported = kafka(broker, capfd, f"--group {empty} --reset-offsets --all-topics --to-current --dry-run --export")
    assert exported == [[f"{topic},0,0"], [f"{topic},1,0"]]
    deleted = kafka(broker, capfd, f"--group {empty} --delete-offsets --topic {topic}")
    assert deleted == [["TOPIC", "STATUS"], [topic, "Successful"]]
    [line] = kafka(broker, capfd, f"--delete --group {empty}")
    assert " ".join(line) == f"Deletion of requested share groups ('{empty}') was successful."
    with pytest.raises(CommandError, match="there is no group"):
        kafka(broker, capfd, f"--delete --group {empty}")


def test_kafka_share_groups_sets_the_start_of_a_group_that_does_not_exist_yet(broker, capfd, group, topic) -> None:
    kafka(broker, capfd, f"--group {group} --reset-offsets --topic {topic} --to-earliest --execute")
    assert kafka(broker, capfd, f"--describe --group {group}")[2] == [group, topic, "1", "0", "5"]


def test_kafka_share_groups_does_not_touch_a_group_of_another_type(broker, capfd, group, topic) -> None:
    done("groups", "reset-offsets", group, "--topic", topic, "--to-earliest", "--execute")
    assert "Classic" in done("groups", "describe", group)
    with pytest.raises(CommandError, match="group id not found"):
        kafka(broker, capfd, f"--group {group} --reset-offsets --topic {topic} --to-latest --execute")
    with pytest.raises(CommandError, match="there is no group"):
        kafka(broker, capfd, f"--delete --group {group}")


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("--list --describe", "exactly one action"),
        ("--describe", "--group, --all-groups"),
        ("--list --state Assigning", "not a state of share groups"),
        ("--group g --reset-offsets --topic t --to-latest", "--execute or --dry-run"),
        ("--group g --group h --reset-offsets --topic t --to-latest --execute", "one --group"),
        ("--all-groups --reset-offsets --topic t --to-latest --execute", "cannot be used with"),
        ("--group g --delete-offsets", "--topic"),
    ],
)
def test_kafka_share_groups_says_what_is_wrong_with_its_flags(broker, capfd, line: str, problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        kafka(broker, capfd, line)
