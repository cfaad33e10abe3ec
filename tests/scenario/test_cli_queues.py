"""``skep queues`` against a real broker with members of share groups, and against one without Skep's API."""

import json
from collections.abc import Iterator
from typing import Any
from uuid import UUID, uuid4

import pytest
from typer.testing import CliRunner, Result

from skep.base.errors import ErrorCode
from skep.cli.failures import CommandError, UsageError
from skep.cli.groups import share_deliveries
from skep.cli.main import app
from skep.cli.queues import queue_commands
from skep.client.errors import Unsupported
from skep.testing import EmbeddedBroker
from skep.wire import apis
from tests.raw_client import RawClient
from tests.raw_requests import batch_of
from tests.scenario.share_member import ACCEPT, RELEASE, ShareMember
from tests.waiting import wait_until

MEMBER = "member-1"


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
def topic() -> str:
    return f"topic-{uuid4().hex[:8]}"


@pytest.fixture
def topic_id(client: RawClient, topic: str) -> UUID:
    """Of a topic with ten records in the first of two partitions."""
    created = client.create_topic(topic, 2)
    client.append(topic, batch_of(*(b"x",) * 10))
    return created


@pytest.fixture
def group(client: RawClient) -> str:
    name = f"group-{uuid4().hex[:8]}"
    done("queues", "config", "set", name, "share.auto.offset.reset=earliest")
    client.ask(apis.FIND_COORDINATOR, 6, key_type=0, coordinator_keys=[name])
    return name


@pytest.fixture
def member(client: RawClient, group: str, topic: str, topic_id: UUID) -> ShareMember:
    """Holds what it fetches: it is a member of the group, too."""
    epoch = 0

    def is_assigned() -> bool:
        """On a busy machine the first response does not wait for the state of the partitions."""
        nonlocal epoch
        body = {"group_id": group, "member_id": MEMBER, "member_epoch": epoch, "subscribed_topic_names": [topic]}
        response = client.ask(apis.SHARE_GROUP_HEARTBEAT, 1, **body)
        assert response.error_code is ErrorCode.none, response.error_message
        epoch = response.member_epoch
        return response.assignment is not None and bool(response.assignment.topic_partitions)

    wait_until(is_assigned, "the partitions are assigned")
    member = ShareMember(client, group, topic_id, partitions=2)
    member.member_id = MEMBER
    return member


def skep(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def done(*arguments: object) -> str:
    """What a command printed that went well."""
    result = skep(*arguments)
    assert result.exit_code == 0, (result.output, result.exception)
    return result.stdout


def failed(*arguments: object) -> str:
    result = skep(*arguments)
    assert isinstance(result.exception, CommandError | UsageError), (result.output, result.exception)
    return str(result.exception)


def rows(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines()]


def test_queues_are_listed_with_what_is_in_flight(group: str, topic: str, member: ShareMember) -> None:
    assert member.acquire() == [(0, 9, 1)]
    member.results({0: [(0, 3, [ACCEPT])]})
    [listed] = [row for row in json.loads(done("queues", "list", "--json")) if row["group"] == group]
    assert listed == {
        "group": group,
        "state": "Stable",
        "topics": [topic],
        "lag": 6,
        "in_flight": 6,
        "waiting": 0,
        "dead_letter_topic": None,
        "members": 1,
    }
    done("queues", "config", "set", group, f"errors.deadletterqueue.topic.name=dlq.{topic}")
    assert [group, "Stable", "1", topic, "6", "6", "0", f"dlq.{topic}"] in rows(done("queues", "list"))


def test_a_queue_is_described_with_who_holds_what(group: str, topic: str, member: ShareMember) -> None:
    assert member.acquire(max_records=4, share_acquire_mode=1) == [(0, 3, 1)]
    member.results({0: [(0, 0, [ACCEPT]), (2, 2, [RELEASE])]})
    head, option, columns, first, second, empty, table, *runs = rows(done("queues", "describe", group))
    assert head == [group, "Stable", "1", "member", "lag", "9"]
    assert option == ["share.auto.offset.reset=earliest"]
    assert columns[:5] == ["topic", "partition", "start", "end", "lag"]
    assert first == [topic, "0", "1", "4", "9", "7", "2", "0", "0"]
    assert second == [topic, "1", "0", "0", "0", "0", "0", "0", "0"]
    assert (empty, table[:3]) == ([], ["topic", "partition", "offsets"])
    assert runs[0][:8] == [topic, "0", "1", "acquired", "1", MEMBER, "raw", "/127.0.0.1"]
    assert len(runs[0]) == 12, "since and until, each with date and time"
    assert runs[1] == [topic, "0", "2", "available", "1", "-", "-", "-", "-", "-"]
    assert [row[2] for row in runs] == ["1", "2", "3"]

    document = json.loads(done("queues", "describe", group, "--json"))
    assert (document["lag"], document["in_flight"]) == (9, 2)
    assert document["options"] == {"share.auto.offset.reset": "earliest"}
    assert [one["member_id"] for one in document["members"]] == [MEMBER]
    [run, *_] = document["partitions"][0]["runs"]
    assert (run["member"], run["lock_expires_ms"] - run["locked_at_ms"]) == (MEMBER, 30_000)


def test_groups_describe_shows_what_is_in_flight(group: str, topic: str, member: ShareMember) -> None:
    member.acquire()
    assert [topic, "0", "0", "10", "10", "10"] in rows(done("groups", "describe", group))
    [document] = json.loads(done("groups", "describe", group, "--json"))
    assert [row["in_flight"] for row in document["partitions"]] == [10, 0]


def test_a_broker_without_the_private_api_shows_the_rest(
    group: str, topic: str, member: ShareMember, monkeypatch: pytest.MonkeyPatch
) -> None:
    member.acquire()

    def unsupported(*_: Any) -> Any:
        raise Unsupported("the broker has no commands of Skep")

    monkeypatch.setattr(share_deliveries, "commands_to_leaders", unsupported)
    assert [group, "Stable", "1", topic, "10", "-", "-", "-"] in rows(done("queues", "list"))
    assert [topic, "0", "0", "-", "10", "-", "-", "-", "-"] in rows(done("queues", "describe", group))
    assert json.loads(done("queues", "describe", group, "--json"))["partitions"][0]["runs"] is None
    assert [topic, "0", "0", "10", "10", "-"] in rows(done("groups", "describe", group))


def test_more_runs_than_fit_into_a_response(group: str, member: ShareMember, monkeypatch: pytest.MonkeyPatch) -> None:
    member.acquire()
    member.results({0: [(offset, offset, [ACCEPT]) for offset in (1, 3, 5, 7)]})
    monkeypatch.setattr(share_deliveries, "PAGE", 2)
    monkeypatch.setattr(queue_commands, "SHOWN_RUNS", 3)
    assert [row[2] for row in rows(done("queues", "describe", group))[-3:]] == ["0", "2", "4"]
    document = json.loads(done("queues", "describe", group, "--json"))
    assert [(run["first"], run["last"]) for run in document["partitions"][0]["runs"]] == [
        (0, 0),
        (2, 2),
        (4, 4),
        (6, 6),
        (8, 9),
    ]


def test_a_group_that_is_no_queue(group: str, topic: str, topic_id: UUID) -> None:
    assert f"there is no share group '{group}'" in failed("queues", "describe", group)
    done("groups", "reset-offsets", group, "--topic", topic, "--to-earliest", "--execute")
    assert f"there is no share group '{group}'" in failed("queues", "describe", group)


def test_options_of_a_queue_are_listed_set_and_deleted(group: str) -> None:
    assert "Set share.delivery.count.limit=7" in done("queues", "config", "set", group, "share.delivery.count.limit=7")
    listed = rows(done("queues", "config", "list", group))
    assert ["share.delivery.count.limit", "7", "set", "for", "this", "group"] in listed
    assert ["share.isolation.level", "read_uncommitted", "default"] in listed
    assert not any(row[0].startswith("consumer.") for row in listed)
    done("queues", "config", "delete", group, "share.delivery.count.limit")
    values = {row["name"]: row["value"] for row in json.loads(done("queues", "config", "list", group, "--json"))}
    assert values["share.delivery.count.limit"] == "5"
    assert "is not set for group" in failed("queues", "config", "delete", group, "share.delivery.count.limit")
    assert "expected NAME=VALUE" in failed("queues", "config", "set", group, "share.delivery.count.limit")
    assert "share.delivery.count.limit=1" in failed("queues", "config", "set", group, "share.delivery.count.limit=1")
    assert failed("queues", "config", "set", group, "no.such=1")


def test_a_record_is_delivered_when_an_operator_says(group: str, topic: str, member: ShareMember) -> None:
    member.acquire()
    assert "If this delivery fails" in done("queues", "retry", group, topic, 0, 4, "--in", "1h", "--reason", "no paper")
    member.results({0: [(0, 9, [RELEASE])]})
    assert member.acquire() == [(0, 3, 2), (5, 9, 2)]
    [first, *_] = json.loads(done("queues", "describe", group, "--json"))["partitions"]
    assert (first["available"], first["in_flight"], first["waiting"]) == (0, 9, 1)
    runs = [row for row in rows(done("queues", "describe", group)) if "waiting" in row[3:4]]
    assert [row[:9] for row in runs] == [[topic, "0", "4", "waiting", "1", "-", "-", "-", "-"]]
    assert f"gets offset 4 of {topic}-0 again in 0s" in done("queues", "retry", group, topic, 0, 4, "--in", "0s")
    assert member.acquire() == [(4, 4, 2)]
    assert "offset 77 is not held" in failed("queues", "retry", group, topic, 0, 77, "--in", "1s")
    assert "no partition 9" in failed("queues", "retry", group, topic, 9, 0, "--in", "1s")
    assert "not a duration" in failed("queues", "retry", group, topic, 0, 0, "--in", "soon")
    assert "there is no share group 'nobody'" in failed("queues", "retry", "nobody", topic, 0, 0, "--in", "1s")
    assert f"did you mean {topic}" in failed("queues", "retry", group, f"{topic}x", 0, 0, "--in", "1s")
