"""skep.share.priority with librdkafka: topics of higher classes come first, or more often."""

from collections import Counter
from collections.abc import Iterator

import pytest
from confluent_kafka import ShareConsumer

from skep.testing import EmbeddedBroker
from tests.compat.test_share_consumer import OPTIONS, configure, create, poll_until, write

COUNT = 300
BATCH = 10


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(options=OPTIONS) as broker:
        yield broker


def order_of_delivery(broker: EmbeddedBroker, name: str, priority: str) -> list[str]:
    """Which class each record is of, in the order in which one member gets them."""
    servers = broker.bootstrap_servers
    topics = {f"{name}.{kind}": kind for kind in ("low", "high", "middle", "other")}
    for topic in topics:
        create(servers, topic, partitions=2)
        for first in range(0, COUNT, 2 * BATCH):
            write(servers, topic, 2 * BATCH, first=first, partitions=2)
    configure(servers, name, "share.auto.offset.reset", "earliest")
    configure(servers, name, "skep.share.priority", priority)
    with ShareConsumer({"bootstrap.servers": servers, "group.id": name, "max.poll.records": 2 * BATCH}) as member:
        member.subscribe(list(topics))
        found = poll_until(member, len(topics) * COUNT)
        member.commit_sync()
    kinds = [topics[str(message.topic())] for message in found]
    assert Counter(kinds) == dict.fromkeys(topics.values(), COUNT)
    return kinds


def middle_of(kinds: list[str], kind: str) -> float:
    """Where the records of a class are, on average: from 0 to 1."""
    places = [place for place, one in enumerate(kinds) if one == kind]
    return sum(places) / len(places) / len(kinds)


def test_lower_classes_wait_until_higher_ones_have_no_records(broker: EmbeddedBroker, topic: str) -> None:
    kinds = order_of_delivery(broker, topic, f"{topic}.high,{topic}.middle,{topic}.low")
    # Share partitions are loaded one after the other: in the first fetches the higher classes may not be there yet.
    settled = kinds[kinds.index("high") :]
    changes = [kind for number, kind in enumerate(settled) if settled[number - 1 : number] != [kind]]
    assert changes == ["high", "middle", "low", "other"]


def test_weighted_classes_all_get_something(broker: EmbeddedBroker, topic: str) -> None:
    kinds = order_of_delivery(broker, topic, f"{topic}.high:8,{topic}.middle:4,{topic}.low:1")
    assert middle_of(kinds, "high") < middle_of(kinds, "middle") < middle_of(kinds, "low")
    # Long before the first class is done, the last one has got some.
    done = max(place for place, kind in enumerate(kinds) if kind == "high")
    assert "low" in kinds[:done]
    assert "other" in kinds[:done]
