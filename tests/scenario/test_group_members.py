"""Classic groups over the wire: every version of each request, large and strange ones, and a crowd."""

import time
from collections.abc import Iterator
from typing import Any

import psutil
import pytest

from skep.base.errors import ErrorCode
from skep.testing import EmbeddedBroker
from skep.wire import apis
from tests.raw_client import RawClient
from tests.raw_requests import seconds
from tests.waiting import wait_until

PROTOCOLS = [{"name": "range", "metadata": b"\x00\x00\x00\x00\x00\x00\xff\xff\xff\xff"}]
MEBIBYTE = 1 << 20


@pytest.fixture
def group(client: RawClient, topic: str) -> str:
    """A name of its own, and the topic of the coordinators is there."""
    client.ask(apis.FIND_COORDINATOR, 6, key_type=0, coordinator_keys=[topic])
    return topic


def join_body(group: str, member_id: str = "", **more: Any) -> dict[str, Any]:
    return {
        "group_id": group,
        "session_timeout": seconds(30),
        "rebalance_timeout": seconds(20),
        "member_id": member_id,
        "protocol_type": "consumer",
        "protocols": PROTOCOLS,
        **more,
    }


def join(client: RawClient, group: str, member_id: str = "", version: int = 9, **more: Any) -> Any:
    response = client.ask(apis.JOIN_GROUP, version, **join_body(group, member_id, **more))
    if response.error_code is ErrorCode.member_id_required:
        response = client.ask(apis.JOIN_GROUP, version, **join_body(group, response.member_id, **more))
    return response


def sync(client: RawClient, group: str, joined: Any, assignments: dict[str, bytes], version: int = 5) -> Any:
    return client.ask(apis.SYNC_GROUP, version, **sync_body(group, joined, assignments))


def sync_body(group: str, joined: Any, assignments: dict[str, bytes]) -> dict[str, Any]:
    return {
        "group_id": group,
        "generation_id": joined.generation_id,
        "member_id": joined.member_id,
        "protocol_type": "consumer",
        "protocol_name": "range",
        "assignments": [{"member_id": member_id, "assignment": part} for member_id, part in assignments.items()],
    }


def heartbeat(client: RawClient, group: str, joined: Any, version: int = 4) -> ErrorCode:
    code = client.ask(
        apis.HEARTBEAT,
        version,
        group_id=group,
        generation_id=joined.generation_id,
        member_id=joined.member_id,
    ).error_code
    assert isinstance(code, ErrorCode)
    return code


def describe(client: RawClient, group: str, version: int = 6) -> Any:
    [described] = client.ask(apis.DESCRIBE_GROUPS, version, groups=[group]).groups
    return described


@pytest.mark.parametrize("step", range(10))
def test_a_member_lives_in_every_version(client: RawClient, group: str, step: int) -> None:
    """The versions of all requests go up together, each as far as it goes."""
    versions = {api: min(step, api.newest) for api in (apis.JOIN_GROUP, apis.SYNC_GROUP, apis.HEARTBEAT)}
    joined = join(client, group, version=versions[apis.JOIN_GROUP])
    assert joined.error_code is ErrorCode.none
    assert (joined.generation_id, joined.leader, joined.protocol_name) == (1, joined.member_id, "range")
    assert joined.member_id.startswith("raw-")
    assert [member.metadata for member in joined.members] == [PROTOCOLS[0]["metadata"]]
    synced = sync(client, group, joined, {joined.member_id: b"all"}, versions[apis.SYNC_GROUP])
    assert (synced.error_code, synced.assignment) == (ErrorCode.none, b"all")
    assert heartbeat(client, group, joined, versions[apis.HEARTBEAT]) is ErrorCode.none
    described = describe(client, group, min(step, apis.DESCRIBE_GROUPS.newest))
    assert (described.group_state, described.protocol_data) == ("Stable", "range")
    [member] = described.members
    assert (member.client_id, member.client_host, member.member_assignment) == ("raw", "/127.0.0.1", b"all")
    version = min(step, apis.LEAVE_GROUP.newest)
    left = client.ask(
        apis.LEAVE_GROUP,
        version,
        group_id=group,
        **({"member_id": joined.member_id} if version < 3 else {"members": [{"member_id": joined.member_id}]}),
    )
    assert left.error_code is ErrorCode.none
    assert [member.error_code for member in getattr(left, "members", ())] == [ErrorCode.none] * (version >= 3)
    assert describe(client, group).group_state == "Empty"


@pytest.mark.parametrize("version", range(6))
def test_leaving_a_group_that_one_is_not_in_is_refused_in_every_version(
    client: RawClient, group: str, version: int
) -> None:
    entry = {"member_id": "stranger"} if version < 3 else {"members": [{"member_id": "stranger"}]}
    left = client.ask(apis.LEAVE_GROUP, version, group_id=group, **entry)
    if version < 3:
        assert left.error_code is ErrorCode.unknown_member_id
    else:
        assert left.error_code is ErrorCode.none
        assert [member.error_code for member in left.members] == [ErrorCode.unknown_member_id]


@pytest.mark.parametrize("name", ["", "x" * 10_000, "é" * 1_000])
def test_group_ids_that_are_empty_or_too_long_are_refused(client: RawClient, group: str, name: str) -> None:
    assert join(client, name).error_code is ErrorCode.invalid_group_id
    stranger = {"group_id": name, "generation_id": 1, "member_id": "m"}
    assert client.ask(apis.HEARTBEAT, 4, **stranger).error_code is ErrorCode.invalid_group_id
    assert client.ask(apis.SYNC_GROUP, 5, **stranger, assignments=[]).error_code is ErrorCode.invalid_group_id
    left = client.ask(apis.LEAVE_GROUP, 5, group_id=name, members=[{"member_id": "m"}])
    assert left.error_code is ErrorCode.invalid_group_id


def test_a_refusal_can_be_read_in_every_version(client: RawClient, group: str) -> None:
    for version in range(apis.JOIN_GROUP.newest + 1):
        refused = join(client, group, version=version, session_timeout=seconds(1))
        assert (refused.error_code, refused.generation_id, refused.member_id) == (
            ErrorCode.invalid_session_timeout,
            -1,
            "",
        )
    for version in range(apis.SYNC_GROUP.newest + 1):
        stranger = {"group_id": group, "generation_id": 1, "member_id": "m", "assignments": []}
        assert client.ask(apis.SYNC_GROUP, version, **stranger).error_code is ErrorCode.unknown_member_id
    for version in range(apis.DESCRIBE_GROUPS.newest + 1):
        described = describe(client, group, version)
        assert described.group_state == "Dead"
        assert (described.error_code is ErrorCode.group_id_not_found) == (version >= 6)


def test_an_assignment_of_ten_megabytes_is_refused_and_the_group_goes_on(
    client: RawClient, other: RawClient, group: str
) -> None:
    first = join(client, group)
    other.send(apis.JOIN_GROUP, 3, **join_body(group))
    again = rejoin_when_asked(client, group, first)
    follower = other.receive()
    assert again.generation_id == follower.generation_id == 2
    other.send(apis.SYNC_GROUP, 5, **sync_body(group, follower, {}))
    refused = sync(client, group, again, {follower.member_id: b"x" * (10 * MEBIBYTE)})
    assert refused.error_code is ErrorCode.unknown_server_error
    assert other.receive().error_code is ErrorCode.rebalance_in_progress
    other.send(apis.JOIN_GROUP, 9, **join_body(group, follower.member_id))
    third = join(client, group, again.member_id)
    assert third.generation_id == other.receive().generation_id == 3
    assert sync(client, group, third, {third.member_id: b"small"}).assignment == b"small"


def rejoin_when_asked(client: RawClient, group: str, joined: Any) -> Any:
    """Sends heartbeats as a client does, until it is told to join again."""
    while heartbeat(client, group, joined) is not ErrorCode.rebalance_in_progress:
        time.sleep(0.01)
    return join(client, group, joined.member_id)


def test_a_thousand_joins_to_one_group_are_answered_and_forgotten() -> None:
    """Each gives up when it has its id, as a client in a crash loop would."""
    with (
        EmbeddedBroker(options={"group.min.session.timeout.ms": "1000"}) as broker,
        RawClient(broker.bootstrap_servers) as client,
    ):
        client.ask(apis.FIND_COORDINATOR, 6, key_type=0, coordinator_keys=["g"])
        before = rss(broker)
        for _ in range(1_000):
            client.send(apis.JOIN_GROUP, 9, **join_body("g", session_timeout=seconds(1)))
        responses = [client.receive() for _ in range(1_000)]
        assert {response.error_code for response in responses} == {ErrorCode.member_id_required}
        assert len({response.member_id for response in responses}) == 1_000
        wait_until(lambda: describe(client, "g").group_state == "Dead", "the group is forgotten")
        assert rss(broker) - before < 16 * MEBIBYTE


def rss(broker: EmbeddedBroker) -> int:
    return int(psutil.Process(broker.pid).memory_info().rss)


def test_large_joins_do_not_fill_the_memory() -> None:
    """Of 40 members with 3 MiB each one is let in; the others are told to give up, and nothing is kept of them."""
    large = [{"name": "range", "metadata": bytes(3 * MEBIBYTE)}]
    with EmbeddedBroker() as broker, RawClient(broker.bootstrap_servers) as client:
        client.ask(apis.FIND_COORDINATOR, 6, key_type=0, coordinator_keys=["g"])
        before = rss(broker)
        codes = [client.ask(apis.JOIN_GROUP, 3, **join_body("g", protocols=large)).error_code for _ in range(40)]
        assert codes == [ErrorCode.none] + [ErrorCode.group_max_size_reached] * 39
        assert rss(broker) - before < 40 * MEBIBYTE


def test_large_subscriptions_do_not_fill_the_memory() -> None:
    topics = [f"{number:06}" + "x" * 200 for number in range(10_000)]
    with EmbeddedBroker() as broker, RawClient(broker.bootstrap_servers) as client:
        client.ask(apis.FIND_COORDINATOR, 6, key_type=0, coordinator_keys=["g"])
        before = rss(broker)
        responses = [
            client.ask(
                apis.CONSUMER_GROUP_HEARTBEAT,
                1,
                group_id="g",
                member_id=f"m{number}",
                member_epoch=0,
                rebalance_timeout=seconds(60),
                subscribed_topic_names=topics,
                topic_partitions=[],
            )
            for number in range(40)
        ]
        assert [response.error_code for response in responses] == [ErrorCode.none] + [
            ErrorCode.group_max_size_reached
        ] * 39
        assert "skep.max.group.metadata.bytes" in responses[-1].error_message
        assert rss(broker) - before < 60 * MEBIBYTE


@pytest.fixture
def small_broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(options={"group.max.size": "5", "group.initial.rebalance.delay.ms": "500"}) as broker:
        yield broker


def test_a_group_that_is_full_says_so_also_to_those_who_are_about_to_join(small_broker: EmbeddedBroker) -> None:
    with RawClient(small_broker.bootstrap_servers) as client:
        client.ask(apis.FIND_COORDINATOR, 6, key_type=0, coordinator_keys=["g"])
        codes = [client.ask(apis.JOIN_GROUP, 9, **join_body("g")).error_code for _ in range(8)]
    assert codes == [ErrorCode.member_id_required] * 5 + [ErrorCode.group_max_size_reached] * 3


def test_a_hundred_members_share_one_generation(topic: str) -> None:
    options = {"group.initial.rebalance.delay.ms": "1000"}
    with EmbeddedBroker(options=options) as broker, RawClient(broker.bootstrap_servers) as admin:
        admin.ask(apis.FIND_COORDINATOR, 6, key_type=0, coordinator_keys=[topic])
        clients = [RawClient(broker.bootstrap_servers, client_id=f"c{n}") for n in range(100)]
        frames = [client.encode(apis.JOIN_GROUP, 3, join_body(topic)) for client in clients]
        # One right after the other: the group waits a second for the next member.
        for client, frame in zip(clients, frames, strict=True):
            client.send_frame(frame)
        joined = [client.receive() for client in clients]
        assert {response.generation_id for response in joined} == {1}
        [leader] = [place for place, response in enumerate(joined) if response.leader == response.member_id]
        assert [len(response.members) for response in joined] == [100 * (place == leader) for place in range(100)]
        parts = {response.member_id: response.member_id.encode() for response in joined}
        for place, client in enumerate(clients):
            client.send(apis.SYNC_GROUP, 5, **sync_body(topic, joined[place], parts if place == leader else {}))
        assert [client.receive().assignment for client in clients] == list(parts.values())
        for client in clients:
            client.close()
