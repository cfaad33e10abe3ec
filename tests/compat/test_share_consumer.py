"""Share groups with librdkafka: each record goes to one member, and comes again until it is accepted."""

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from confluent_kafka import AcknowledgeType, KafkaError, Message, ShareConsumer
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from skep.client.cluster_client import GROUP, ClusterClient
from skep.client.commands import command_to_leader
from skep.testing import EmbeddedBroker
from skep.wire.apis import SHARE_GROUP_DESCRIBE
from tests.compat.clients import PATIENCE_S, confluent_producer
from tests.waiting import wait_until

OPTIONS = {
    "group.share.min.heartbeat.interval.ms": "50",
    "group.share.heartbeat.interval.ms": "200",
    "group.share.min.session.timeout.ms": "500",
    "group.share.session.timeout.ms": "15000",
    "group.share.min.record.lock.duration.ms": "1000",
}
"""Shorter than Kafka's, so that nobody has to wait long. Sessions are not that short: a member that is fenced loses
what it holds, and the machine may be busy."""

HANGING = """
import sys, time
from confluent_kafka import ShareConsumer
member = ShareConsumer(
    {"bootstrap.servers": sys.argv[1], "group.id": sys.argv[2], "share.acknowledgement.mode": "explicit"}
)
member.subscribe([sys.argv[2]])
while not (held := member.poll(1)):
    pass
print(len(held), flush=True)
time.sleep(600)
"""


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(options=OPTIONS) as broker:
        yield broker


@pytest.fixture
def servers(broker: EmbeddedBroker) -> str:
    return broker.bootstrap_servers


@pytest.fixture
def group(servers: str, topic: str) -> str:
    create(servers, topic, partitions=1)
    return topic


def create(servers: str, name: str, partitions: int, replicas: int = 1) -> None:
    """A topic, and a group with its name that reads it from its start."""
    admin = AdminClient({"bootstrap.servers": servers})
    admin.create_topics([NewTopic(name, partitions, replicas)])[name].result(PATIENCE_S)
    configure(servers, name, "share.auto.offset.reset", "earliest")


def configure(servers: str, group: str, name: str, value: str) -> None:
    admin = AdminClient({"bootstrap.servers": servers})
    entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.GROUP, group, incremental_configs=[entry])
    admin.incremental_alter_configs([resource])[resource].result(PATIENCE_S)


def write(servers: str, topic: str, count: int, *, first: int = 0, partitions: int = 1) -> list[str]:
    producer = confluent_producer(servers)
    values = [f"job {number}" for number in range(first, first + count)]
    for number, value in enumerate(values):
        producer.produce(topic, value.encode(), partition=number % partitions)
    assert producer.flush(PATIENCE_S) == 0
    return values


@contextmanager
def consumer(servers: str, group: str, *, explicit: bool = False, **options: Any) -> Iterator[ShareConsumer]:
    mode = {"share.acknowledgement.mode": "explicit"} if explicit else {}
    with ShareConsumer({"bootstrap.servers": servers, "group.id": group, **mode, **options}) as member:
        member.subscribe([group])
        yield member


def polled(member: ShareConsumer, timeout_s: float = 0.2) -> list[Message]:
    messages = list(member.poll(timeout_s))
    assert [message.error() for message in messages if message.error()] == []
    return messages


def text(message: Message) -> str:
    value = message.value()
    assert value is not None
    return value.decode()


def poll_until(member: ShareConsumer, count: int) -> list[Message]:
    """Messages until there are so many, all of them accepted by the next poll."""
    found: list[Message] = []

    def enough() -> bool:
        found.extend(polled(member))
        return len(found) >= count

    wait_until(enough, lambda: f"{count} messages; there were {len(found)}")
    return found


def test_two_members_share_the_records_and_each_is_delivered_once(servers: str, group: str) -> None:
    # Not in one batch: whole batches are acquired.
    values = [value for first in range(0, 400, 10) for value in write(servers, group, 10, first=first)]
    seen: Counter[str] = Counter()
    with (
        consumer(servers, group, **{"max.poll.records": 10}) as one,
        consumer(servers, group, **{"max.poll.records": 10}) as two,
    ):
        shares = [0, 0]

        def all_seen() -> bool:
            for number, member in enumerate((one, two)):
                messages = polled(member)
                shares[number] += len(messages)
                seen.update(map(text, messages))
            return len(seen) == len(values)

        wait_until(all_seen, lambda: f"all {len(values)} records are delivered: {shares}")
    assert seen == Counter(values)
    assert min(shares) > 0


def test_what_was_accepted_does_not_come_again_to_the_next_member(servers: str, group: str) -> None:
    values = write(servers, group, 40)
    with consumer(servers, group) as member:
        assert sorted(map(text, poll_until(member, 40))) == sorted(values)
        # The next poll would accept them too; the close does not.
        member.commit_sync(PATIENCE_S)
    more = write(servers, group, 6, first=40)
    with consumer(servers, group) as member:
        assert Counter(map(text, poll_until(member, 6))) == Counter(more)


class Committed:
    """What the callback of a member was told: which offsets, and the code of the error."""

    def __init__(self, member: ShareConsumer) -> None:
        self.told: dict[int, int | None] = {}
        member.set_acknowledgement_commit_callback(self._add)

    def _add(self, offsets: Any, error: Any) -> None:
        code = None if error is None else error.args[0].code()
        self.told |= {offset: code for some in offsets.values() for offset in some}


def test_the_callback_is_told_of_each_acknowledgement_that_was_committed_meanwhile(servers: str, group: str) -> None:
    values = write(servers, group, 6)
    with consumer(servers, group, explicit=True) as member:
        committed = Committed(member)
        held: list[Message] = []
        wait_until(lambda: held.extend(polled(member)) or len(held) == 6, "it has all records")
        kinds = [AcknowledgeType.ACCEPT, AcknowledgeType.RELEASE, AcknowledgeType.REJECT] * 2
        for message, kind in zip(held, kinds, strict=True):
            member.acknowledge(message, kind)
        member.commit_async()
        again: list[Message] = []
        wait_until(
            lambda: again.extend(polled(member)) or (len(committed.told) == 6 and len(again) == 2),
            lambda: f"all are confirmed, two come again: {committed.told} {again}",
        )
        assert committed.told == dict.fromkeys(range(6))
        assert [(text(message), message.delivery_count()) for message in again] == [(values[1], 2), (values[4], 2)]
        for message in again:
            member.acknowledge(message)
        committed.told.clear()
        # Nothing is polled again: close serves the callback, too.
        member.commit_async()
    assert committed.told == dict.fromkeys([1, 4])
    more = write(servers, group, 1, first=6)
    with consumer(servers, group) as member:
        assert Counter(map(text, poll_until(member, 1))) == Counter(more)


def test_the_callback_is_told_when_an_acknowledgement_is_too_late(servers: str, group: str) -> None:
    configure(servers, group, "share.record.lock.duration.ms", "1000")
    write(servers, group, 2)
    with consumer(servers, group, explicit=True) as sleeper, consumer(servers, group) as other:
        committed = Committed(sleeper)
        held: list[Message] = []
        wait_until(lambda: held.extend(polled(sleeper)) or len(held) == 2, "it has both records")
        assert len(poll_until(other, 2)) == 2
        for message in held:
            sleeper.acknowledge(message)
        sleeper.commit_async()
        wait_until(lambda: polled(sleeper) or len(committed.told) == 2, lambda: f"it is told: {committed.told}")
        assert committed.told == dict.fromkeys(range(2), KafkaError.INVALID_RECORD_STATE)


def test_a_record_that_is_released_comes_again_and_one_that_is_rejected_does_not(servers: str, group: str) -> None:
    values = write(servers, group, 6)
    delivered: Counter[str] = Counter()
    with consumer(servers, group, explicit=True) as member:

        def done() -> bool:
            for message in polled(member):
                value = text(message)
                delivered[value] += 1
                if value == values[0]:
                    member.acknowledge(message, AcknowledgeType.REJECT)
                elif value == values[1] and delivered[value] < 3:
                    member.acknowledge(message, AcknowledgeType.RELEASE)
                else:
                    member.acknowledge(message, AcknowledgeType.ACCEPT)
            assert all(error is None for error in member.commit_sync(PATIENCE_S).values())
            return delivered[values[1]] == 3 and len(delivered) == 6

        wait_until(done, lambda: f"all are delivered and one of them three times: {delivered}")
        for _ in range(3):
            assert polled(member) == []
    assert delivered == Counter({**dict.fromkeys(values, 1), values[1]: 3})


def test_a_record_is_delivered_no_more_often_than_the_limit(servers: str, group: str) -> None:
    configure(servers, group, "share.delivery.count.limit", "2")
    values = write(servers, group, 2)
    delivered: Counter[str] = Counter()
    with consumer(servers, group, explicit=True) as member:

        def done() -> bool:
            for message in polled(member):
                delivered[text(message)] += 1
                member.acknowledge(message, AcknowledgeType.RELEASE)
            member.commit_sync(PATIENCE_S)
            return sum(delivered.values()) >= 4

        wait_until(done, lambda: f"both are delivered twice: {delivered}")
        more = set(write(servers, group, 2, first=2))
        later: set[str] = set()

        def all_later() -> bool:
            for message in polled(member):
                later.add(text(message))
                member.acknowledge(message)
            return later >= more

        wait_until(all_later, lambda: f"what was written afterwards is delivered: {later}")
        assert later == more, "nothing comes a third time"
    assert delivered == Counter(dict.fromkeys(values, 2))


def test_records_whose_lock_has_expired_go_to_another_member(servers: str, group: str) -> None:
    configure(servers, group, "share.record.lock.duration.ms", "1000")
    values = write(servers, group, 10)
    with consumer(servers, group, explicit=True) as sleeper, consumer(servers, group) as other:
        held: list[Message] = []
        wait_until(lambda: held.extend(polled(sleeper)) or len(held) > 0, "the first one has records")
        # The first one neither acknowledges nor polls again.
        assert sorted(map(text, poll_until(other, 10))) == sorted(values)
        for message in held:
            sleeper.acknowledge(message)
        assert any(error is not None for error in sleeper.commit_sync(PATIENCE_S).values()), "it is too late"


def test_a_member_that_hangs_loses_what_it_holds_after_the_session_timeout(servers: str, group: str) -> None:
    """Its locks would expire after 30 seconds; its connection stays open."""
    configure(servers, group, "share.session.timeout.ms", "5000")
    values = write(servers, group, 10)
    with subprocess.Popen(
        [sys.executable, "-c", HANGING, servers, group], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as hanging:
        try:
            assert hanging.stdout is not None
            assert hanging.stdout.readline() == "10\n"
            os.kill(hanging.pid, signal.SIGSTOP)
            stopped = time.monotonic()
            configure(servers, group, "share.session.timeout.ms", "15000")
            with consumer(servers, group) as other:
                assert sorted(map(text, poll_until(other, 10))) == sorted(values)
            assert time.monotonic() - stopped < 25
        finally:
            hanging.kill()


def test_who_holds_what_is_known_by_the_ids_of_the_members(servers: str, group: str) -> None:
    write(servers, group, 3)
    with consumer(servers, group, explicit=True) as member, ClusterClient(servers) as cluster:
        wait_until(lambda: len(polled(member)) > 0, "it has records")
        [run] = command_to_leader(cluster, group, 0, "deliveries", {"group": group})["runs"]
        assert (run["first"], run["last"], run["state"]) == (0, 2, "acquired")
        body = {"group_ids": [group], "include_authorized_operations": False}
        _, response = cluster.ask_coordinator(
            GROUP, group, SHARE_GROUP_DESCRIBE, body, lambda found: found.groups[0].error_code
        )
        assert [one.member_id for one in response.groups[0].members] == [run["member"]]


def test_what_a_member_holds_when_it_is_closed_goes_to_the_next_at_once(servers: str, group: str) -> None:
    values = write(servers, group, 10)
    with consumer(servers, group, explicit=True) as member:
        held: list[Message] = []
        wait_until(lambda: held.extend(polled(member)) or len(held) > 0, "it has records")
    # The lock lasts 30 s; the close has released the records.
    with consumer(servers, group) as other:
        assert Counter(map(text, poll_until(other, 10))) == Counter(values)


def test_accepted_records_stay_accepted_when_the_broker_is_killed() -> None:
    with EmbeddedBroker(options={**OPTIONS, "group.share.session.timeout.ms": "2000"}) as broker:
        servers, name = broker.bootstrap_servers, "jobs"
        create(servers, name, partitions=2)
        values = write(servers, name, 20, partitions=2)
        accepted: set[str] = set()
        with consumer(servers, name, explicit=True) as member:

            def half_is_accepted() -> bool:
                messages = polled(member)
                for message in messages:
                    is_wanted = int(text(message).split()[1]) % 3 == 0
                    member.acknowledge(message, AcknowledgeType.ACCEPT if is_wanted else AcknowledgeType.RELEASE)
                results = member.commit_sync(PATIENCE_S)
                assert all(error is None for error in results.values())
                accepted.update(text(message) for message in messages if int(text(message).split()[1]) % 3 == 0)
                return len(accepted) == 7

            wait_until(half_is_accepted, lambda: f"every third record is accepted: {accepted}")
            broker.kill()
            broker.restart()
        with consumer(servers, name) as member:
            rest = poll_until(member, 13)
            assert Counter(map(text, rest)) == Counter(set(values) - accepted)
