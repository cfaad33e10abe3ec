"""Share groups with librdkafka: one slow record stops nobody, and a record that failed comes again at its time."""

import time
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import pytest
from confluent_kafka import AcknowledgeType, Message, ShareConsumer

from skep.testing import EmbeddedBroker
from tests.compat.clients import PATIENCE_S, confluent_producer
from tests.compat.test_share_consumer import OPTIONS, configure, consumer, create, poll_until, polled, text, write
from tests.waiting import wait_until

BACKOFF_S = 2.0
LOCKS = 100
MANY = 5_000


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(options=OPTIONS) as broker:
        yield broker


@pytest.fixture
def servers(broker: EmbeddedBroker) -> str:
    return broker.bootstrap_servers


def test_one_record_that_is_held_does_not_stop_five_thousand_others(servers: str, topic: str) -> None:
    create(servers, topic, partitions=1)
    configure(servers, topic, "share.partition.max.record.locks", str(LOCKS))
    configure(servers, topic, "share.record.lock.duration.ms", "60000")
    [slow] = write(servers, topic, 1)
    with consumer(servers, topic, explicit=True) as sleeper:
        held: list[Message] = []
        wait_until(lambda: held.extend(polled(sleeper)) or len(held) > 0, "it has the slow record")
        assert list(map(text, held)) == [slow]
        # Batches of fewer records than there are locks: whole batches are acquired.
        others = [value for first in range(1, MANY + 1, 50) for value in write(servers, topic, 50, first=first)]
        with consumer(servers, topic) as fast:
            assert Counter(map(text, poll_until(fast, MANY))) == Counter(others)
            fast.commit_sync(PATIENCE_S)
        sleeper.acknowledge(held[0])
        assert [error for error in sleeper.commit_sync(PATIENCE_S).values() if error] == [], "its lock was kept"


def test_records_that_are_too_old_are_not_delivered(servers: str, topic: str) -> None:
    create(servers, topic, partitions=1)
    configure(servers, topic, "skep.share.record.ttl.ms", "3600000")
    producer = confluent_producer(servers)
    for hours in (3, 2, 0):
        producer.produce(topic, f"{hours} hours old", timestamp=round((time.time() - 3600 * hours) * 1000))
        assert producer.flush(PATIENCE_S) == 0
    with consumer(servers, topic) as member:
        assert list(map(text, poll_until(member, 1))) == ["0 hours old"]


def test_a_failed_record_waits_for_its_time_also_when_the_broker_is_killed_meanwhile() -> None:
    with EmbeddedBroker(options=OPTIONS) as broker:
        servers, name = broker.bootstrap_servers, "jobs"
        create(servers, name, partitions=1)
        configure(servers, name, "skep.share.retry.backoff", f"{BACKOFF_S:g}s")
        configure(servers, name, "share.delivery.count.limit", "3")
        [bad, *good] = write(servers, name, 4)
        deliveries: list[Delivery] = []
        for _ in range(3):
            with consumer(servers, name, explicit=True) as member:
                fail(member, bad, deliveries)
                if len(deliveries) < 3:
                    broker.kill()
                    broker.restart()
        assert [delivery.count for delivery in deliveries] == [1, 2, 3], "the count is kept"
        for before, after in pairwise(deliveries):
            waited_s = after.at - before.released_at
            assert waited_s >= BACKOFF_S, f"delivery {after.count} is {BACKOFF_S - waited_s} s early"
        more = write(servers, name, 1, first=len(good) + 1)
        with consumer(servers, name) as member:
            assert list(map(text, poll_until(member, 1))) == more, "three failures are the limit"


class Delivery(NamedTuple):
    at: float
    count: int
    released_at: float
    """Before the request was sent."""


def fail(member: ShareConsumer, bad: str, deliveries: list[Delivery]) -> None:
    """Accepts what comes, until the bad one does, which is released."""
    before = len(deliveries)

    def has_failed() -> bool:
        for message in polled(member):
            if text(message) == bad:
                deliveries.append(Delivery(time.time(), message.delivery_count(), time.time()))
                member.acknowledge(message, AcknowledgeType.RELEASE)
            else:
                member.acknowledge(message)
        assert [error for error in member.commit_sync(PATIENCE_S).values() if error] == []
        return len(deliveries) > before

    wait_until(has_failed, "the bad record is delivered")
