"""kill -9 under load, again and again: what was acknowledged under sync flush is there once, undamaged."""

import contextlib
import os
import random
import signal
import threading
from collections.abc import Iterator

import pytest

from skep.testing import EmbeddedBroker
from tests.lengths import times
from tests.raw_client import RawClient
from tests.raw_requests import batch_of
from tests.scenario.kill_history import History, Reader
from tests.scenario.kill_producers import BatchProducer, LibrdkafkaProducer
from tests.waiting import wait_until

KILLS = times(15, long=200)
OPTIONS = {
    "log.flush.interval.messages": "1",
    # Small, so that some deaths come while a segment is sealed and the next one begun.
    "log.segment.bytes": "131072",
    "log.index.interval.bytes": "512",
    "log.flush.offset.checkpoint.interval.ms": "300",
}
TOPICS = ("killed-a", "killed-b")
PARTITIONS = [(topic, partition) for topic in TOPICS for partition in (0, 1)]

AnyProducer = BatchProducer | LibrdkafkaProducer


def seed() -> int:
    """``SKEP_SEED`` repeats the moments of an earlier run, as far as the machine allows."""
    number = int(os.environ.get("SKEP_SEED") or random.SystemRandom().getrandbits(32))
    print(f"SKEP_SEED={number}")
    return number


@contextlib.contextmanager
def producing(broker: EmbeddedBroker, history: History) -> Iterator[list[AnyProducer]]:
    """Load of every kind; afterwards all that was begun by idempotent producers is finished."""
    servers = broker.bootstrap_servers
    producers: list[AnyProducer] = [
        BatchProducer(f"plain-{n}", servers, history, topic, partition, is_idempotent=False)
        for n, (topic, partition) in enumerate(PARTITIONS)
    ]
    producers += [
        BatchProducer(f"idempotent-{n}", servers, history, topic, partition, is_idempotent=True)
        for n, (topic, partition) in enumerate(PARTITIONS[:2])
    ]
    producers.append(LibrdkafkaProducer("librdkafka", servers, history, *PARTITIONS[3]))
    for producer in producers:
        producer.start()
    try:
        yield producers
    finally:
        for producer in producers:
            producer.stop()
        for producer in producers:
            producer.join(90)
            assert not producer.is_alive(), f"{producer.name} did not finish"


def check_all_well(producers: list[AnyProducer]) -> None:
    assert not (failures := [producer.failure for producer in producers if producer.failure]), failures


def all_have_more(producers: list[AnyProducer], before: list[int]) -> bool:
    check_all_well(producers)
    return all(producer.acknowledged > count for producer, count in zip(producers, before, strict=True))


def start_dying(broker: EmbeddedBroker, after_s: float) -> None:
    """Starts the broker and kills it so long afterwards, in the middle of its recovery or just past it."""
    timer = threading.Timer(after_s, lambda: os.kill(broker.pid, signal.SIGKILL))
    timer.start()
    with contextlib.suppress(RuntimeError):
        broker.start()
    timer.join()
    broker.kill()


@pytest.mark.long
def test_many_deaths_under_load_lose_nothing_and_double_nothing() -> None:
    chance = random.Random(seed())
    history, reader, checked = History(), Reader(PARTITIONS), 0
    with EmbeddedBroker(options=OPTIONS) as broker:
        with RawClient(broker.bootstrap_servers) as client:
            for topic in TOPICS:
                client.create_topic(topic, partitions=2)
        with producing(broker, history) as producers:
            for number in range(KILLS):
                # librdkafka takes its time to come back; a death in five waits for it too.
                waited_for = producers if number % 5 == 0 else producers[:-1]
                before = [producer.acknowledged for producer in waited_for]
                wait_until(lambda who=waited_for, before=before: all_have_more(who, before), "all producers to get on")
                # Not waiting for a condition, but choosing the moment of death.
                threading.Event().wait(chance.random() ** 2 * 0.3)
                broker.kill()
                if number % 5 == 4:
                    start_dying(broker, chance.uniform(0.1, 0.5))
                broker.start()
                acknowledged = history.since(checked)
                with RawClient(broker.bootstrap_servers) as client:
                    reader.read_on(client)
                reader.check(acknowledged)
                checked += len(acknowledged)
        check_all_well(producers)
        with RawClient(broker.bootstrap_servers) as client:
            reader.read_on(client)
            # From the beginning once more: recovery must not have touched what was read long ago.
            again = Reader(PARTITIONS)
            again.read_on(client)
        assert again.values() == reader.values()
        again.check(history.since(0))
        again.check_others(history)
        check_idempotent_are_complete(history, again)
        assert "Traceback" not in broker.log
        print(f"{len(history.since(0))} records were acknowledged, {len(again.values())} are there, {KILLS} deaths")


def check_idempotent_are_complete(history: History, reader: Reader) -> None:
    """All that an idempotent producer sent was acknowledged in the end, so what is not acknowledged is others'."""
    acknowledged = {entry.value for entry in history.since(0)}
    for value in reader.values():
        assert value in acknowledged or value.startswith(b"plain-"), f"{value!r} is there and was never acknowledged"


def test_the_judge_of_these_tests_notices_a_lost_record_and_a_damaged_one() -> None:
    history = History()
    with EmbeddedBroker(options=OPTIONS) as broker:
        with RawClient(broker.bootstrap_servers) as client:
            client.create_topic("judged")
            for number in range(10):
                values = [b"%d" % number]
                history.sent(values)
                history.acknowledged("judged", 0, client.append("judged", batch_of(*values)), values)
        [log] = broker.data_dir.glob("judged-0/*.log")
        whole = log.read_bytes()
        for harm in (whole[:-1], whole[:-3] + b"x" + whole[-2:]):
            broker.kill()
            log.write_bytes(harm)
            broker.start()
            reader = Reader([("judged", 0)])
            with RawClient(broker.bootstrap_servers) as client:
                reader.read_on(client)
            with pytest.raises(AssertionError, match="LOST: b'9'"):
                reader.check(history.since(0))
