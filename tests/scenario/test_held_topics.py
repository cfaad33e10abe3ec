"""Held topics with a real broker and real clients: what a user sees, and kills of the broker and of the worker."""

import os
import random
import signal
import time
from collections.abc import Iterator

import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
)

from skep.testing import EmbeddedBroker
from tests.lengths import times
from tests.scenario.held_history import (
    HELD,
    TARGET,
    Reader,
    Writer,
    check_history,
    create_held,
    is_decided,
    print_lateness,
    random_writes,
    worker_pid,
)
from tests.waiting import PATIENCE_S, wait_until

MESSAGES = times(5_000, long=100_000)
KILLS = times(6, long=60)
LONGEST_MS = times(10_000, long=240_000)


@pytest.fixture
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker() as started:
        yield started


@pytest.fixture
def reader(broker: EmbeddedBroker) -> Iterator[Reader]:
    create_held(broker.bootstrap_servers)
    reader = Reader(broker.bootstrap_servers, TARGET, 2)
    yield reader
    reader.close()


def now_ms() -> int:
    return int(time.time() * 1000)


def test_what_a_user_sees(broker: EmbeddedBroker, reader: Reader) -> None:
    writer = Writer(broker.bootstrap_servers)
    worker = wait_until(lambda: worker_pid(broker.pid), "there is a worker")
    # Frozen, it releases nothing before its recall is written, however long that takes.
    os.kill(worker, signal.SIGSTOP)
    begun = now_ms()
    writer.write("late", b"late", delay_ms=1500, kept="x")
    writer.write("recalled", b"recalled", delay_ms=1000)
    writer.write("moved", b"moved", delay_ms=3_600_000)
    writer.write("bad", b"bad", delay_ms="soon")
    writer.write("half", b"half")
    writer.write("other", b"rolled back")
    writer.write("", b"no key", delay_ms=0)
    writer.write("past", b"past", deliver_at="2001-01-01T00:00:00Z", deliver_key="k")
    writer.flush()
    writer.write("recalled", None)
    writer.write("moved", b"moved", delay_ms=1000)
    writer.write("half", b"", commit="")
    writer.write("other", None)
    writer.write("beat", b"beat", schedule="@every 1s")
    writer.flush()
    os.kill(worker, signal.SIGCONT)
    released = {b"beat", b"half", b"late", b"moved", b"no key", b"past"}
    reader.until(lambda found: {m.value() for m in found} >= released, "all are released")
    reader.until(lambda found: [m.value() for m in found].count(b"beat") >= 2, "the schedule has fired twice")
    found = {message.value(): message for message in reader.messages}
    assert found.keys() == released
    assert found[b"late"].headers()[0] == ("kept", b"x")
    assert found[b"late"].timestamp()[1] >= begun + 1500
    assert found[b"past"].key() == b"k"
    stays = "the record at 3 stays: delay-ms is not a number of milliseconds: 'soon'"
    wait_until(lambda: stays in broker.log, "the worker says so")
    assert_partitions_are_kafkas(broker, reader)


def assert_partitions_are_kafkas(broker: EmbeddedBroker, reader: Reader) -> None:
    """As librdkafka's own partitioner for Java's hash puts the same keys."""
    chosen = {}
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "partitioner": "murmur2_random"})
    for key in {message.key() for message in reader.messages} - {b""}:  # for which it throws dice
        producer.produce(TARGET, b"", key, on_delivery=lambda _, m: chosen.update({m.key(): m.partition()}))
    assert producer.flush(PATIENCE_S) == 0
    assert {message.key(): message.partition() for message in reader.messages if message.key()} == chosen


def test_a_broker_without_held_topics_has_no_worker_and_one_with_them_ends_it(broker: EmbeddedBroker) -> None:
    assert worker_pid(broker.pid) is None
    create_held(broker.bootstrap_servers)
    pid = wait_until(lambda: worker_pid(broker.pid), "the worker is started")
    broker.kill()
    wait_until(lambda: not is_alive(pid), "the worker ends with its broker")
    broker.start()
    pid = wait_until(lambda: worker_pid(broker.pid), "the worker is started again")
    broker.shut_down()
    assert not is_alive(pid)


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_options_that_cannot_work_are_refused_and_others_are_shown(broker: EmbeddedBroker) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})

    def create(name: str, **config: str) -> None:
        options = {option.replace("_", "."): text for option, text in config.items()}
        admin.create_topics([NewTopic(name, 1, config=options)])[name].result()

    for name, config, text in [
        ("a", {"skep_held_target": "a"}, "its own target"),
        ("a", {"skep_held_target": "no topic"}, "must be the name of a topic"),
        ("a", {"skep_held_target": "b", "cleanup_policy": "delete"}, "needs cleanup.policy=compact"),
        ("a", {"skep_held_target": "__consumer_offsets"}, "internal topic"),
    ]:
        with pytest.raises(KafkaException, match=text):
            create(name, **config)
    with pytest.raises(KafkaException, match=r"101 more partition.s. of held topics would exceed"):
        admin.create_topics([NewTopic("a", 101, config={"skep.held.target": "b"})])["a"].result()
    admin.create_topics([NewTopic("many", 101)])["many"].result()
    entry = ConfigEntry("skep.held.target", "b", incremental_operation=AlterConfigOpType.SET)
    many = ConfigResource("topic", "many", incremental_configs=[entry])
    with pytest.raises(KafkaException, match=r"needs cleanup.policy=compact"):
        admin.incremental_alter_configs([many])[many].result()
    create("a", skep_held_target="b")
    with pytest.raises(KafkaException, match="there are 1"):
        admin.create_partitions([NewPartitions("a", 102)])["a"].result()
    resource = ConfigResource("topic", "a")
    shown = admin.describe_configs([resource])[resource].result()
    assert (shown["cleanup.policy"].value, shown["skep.held.tick.ms"].value) == ("compact", "100")


def test_a_record_that_is_too_large_for_the_target_stays_and_stops_nobody(
    broker: EmbeddedBroker, reader: Reader
) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    entry = ConfigEntry("max.message.bytes", "2000", incremental_operation=AlterConfigOpType.SET)
    target = ConfigResource("topic", TARGET, incremental_configs=[entry])
    admin.incremental_alter_configs([target])[target].result()
    writer = Writer(broker.bootstrap_servers)
    soon = now_ms() + 500
    for number in range(5):
        writer.write(str(number), b"x" * (5000 if number == 2 else 10), deliver_at=soon)
    writer.flush()
    reader.until(lambda found: len(found) == 4, "the small ones are released")
    assert {message.key() for message in reader.messages} == {b"0", b"1", b"3", b"4"}
    wait_until(lambda: "the record at 2 cannot be released" in broker.log, "the worker says so")


def test_a_missing_target_is_waited_for() -> None:
    with EmbeddedBroker(options={"auto.create.topics.enable": "false"}) as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        admin.create_topics([NewTopic(HELD, 1, config={"skep.held.target": TARGET})])[HELD].result()
        writer = Writer(broker.bootstrap_servers)
        writer.write("a", b"1", delay_ms=0)
        writer.flush()
        wait_until(lambda: "held topic orders.later-0: " in broker.log, "the worker says what is missing")
        admin.create_topics([NewTopic(TARGET, 2)])[TARGET].result()
        target = Reader(broker.bootstrap_servers, TARGET, 2)
        target.until(lambda found: [message.value() for message in found] == [b"1"], "it is released")
        target.close()


@pytest.mark.long
def test_every_message_is_released_once_and_none_early_through_kills(broker: EmbeddedBroker, reader: Reader) -> None:
    """The broker and the worker die by SIGKILL, in turns, each time that some more has been released."""
    dice = random.Random(5)
    writer = Writer(broker.bootstrap_servers)
    random_writes(writer, dice, MESSAGES, LONGEST_MS, now_ms() + 1000)
    for kill in range(KILLS):
        enough = MESSAGES * (kill + 1) * 7 // (KILLS + 1) // 10
        reader.until(lambda found, enough=enough: len(found) >= enough, f"{enough} are released")
        if kill % 2:
            broker.kill()
            broker.start()
        elif (pid := worker_pid(broker.pid)) is not None:
            os.kill(pid, signal.SIGKILL)
    writer.flush()
    held = Reader(broker.bootstrap_servers, HELD, 1)

    def all_is_decided(_: object) -> bool:
        reader.read(0)
        return is_decided(held.messages, MESSAGES)

    held.until(all_is_decided, "every message is released or recalled")
    reader.read_to_the_end()
    late = check_history(held.messages, reader.messages)
    held.close()
    print_lateness(late)
    assert len(late) > MESSAGES * 8 // 10
