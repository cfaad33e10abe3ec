"""skep.share.members with librdkafka: one active member, and who takes over."""

import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator

import pytest
from confluent_kafka import KafkaError, KafkaException

from skep.testing import EmbeddedBroker
from tests.compat.test_share_consumer import (
    HANGING,
    OPTIONS,
    configure,
    consumer,
    create,
    poll_until,
    polled,
    text,
    write,
)
from tests.waiting import wait_until


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(options=OPTIONS) as broker:
        yield broker


@pytest.fixture
def servers(broker: EmbeddedBroker) -> str:
    return broker.bootstrap_servers


def test_a_stand_by_takes_over_when_the_active_member_closes(servers: str, topic: str) -> None:
    create(servers, topic, partitions=3)
    configure(servers, topic, "skep.share.members", "failover")
    with consumer(servers, topic) as active:
        # Whoever has records has come first.
        write(servers, topic, 30, partitions=3)
        assert len(poll_until(active, 30)) == 30
        with consumer(servers, topic) as standby:
            for first in (30, 60):
                write(servers, topic, 30, first=first, partitions=3)
                seen = 0
                while seen < 30:
                    assert polled(standby, 0.1) == []
                    seen += len(polled(active))
            active.commit_sync()
            active.close()
            values = write(servers, topic, 30, first=90, partitions=3)
            assert sorted(map(text, poll_until(standby, 30))) == sorted(values)


def test_a_stand_by_takes_over_when_the_active_member_is_killed(servers: str, topic: str) -> None:
    create(servers, topic, partitions=3)
    configure(servers, topic, "skep.share.members", "failover")
    configure(servers, topic, "share.session.timeout.ms", "5000")
    values = write(servers, topic, 30, partitions=3)
    command = [sys.executable, "-c", HANGING, servers, topic]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as active:
        try:
            assert active.stdout is not None
            assert int(active.stdout.readline()) > 0, "it has come first, and holds records"
            with consumer(servers, topic) as second:
                assert [polled(second) for _ in range(5)] == [[]] * 5
                with consumer(servers, topic) as third:
                    assert [polled(third) for _ in range(5)] == [[]] * 5
                    # The time-out of the next ones is longer: the machine may be busy.
                    configure(servers, topic, "share.session.timeout.ms", "15000")
                    active.kill()
                    killed = time.monotonic()
                    taken = Counter(map(text, poll_until(second, 30)))
                    assert time.monotonic() - killed < 25
                    assert taken == Counter(values), "also what the killed one held, each once"
                    assert polled(third) == []
                    second.commit_sync()
                    more = write(servers, topic, 30, first=30, partitions=3)
                    assert sorted(map(text, poll_until(second, 30))) == sorted(more)
                    assert polled(third) == []
        finally:
            active.kill()


def test_a_second_member_of_an_exclusive_group_gets_an_error(servers: str, topic: str) -> None:
    create(servers, topic, partitions=1)
    configure(servers, topic, "skep.share.members", "exclusive")
    write(servers, topic, 10)
    with consumer(servers, topic) as first:
        assert len(poll_until(first, 10)) == 10
        with pytest.raises(KafkaException) as caught, consumer(servers, topic) as second:
            wait_until(lambda: polled(second), lambda: "an error")
        assert caught.value.args[0].code() == KafkaError.GROUP_MAX_SIZE_REACHED
    write(servers, topic, 10, first=10)
    with consumer(servers, topic) as again:
        assert len(poll_until(again, 10)) >= 10
