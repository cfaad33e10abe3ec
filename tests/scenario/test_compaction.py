"""Compaction of a running broker, seen by real clients: what stays, who notices, what outlives a kill."""

import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic

from skep.testing import EmbeddedBroker
from tests.waiting import wait_until

PATIENCE_S = 150.0
"""The first pass after an installation compiles its kernels, which takes its time on a busy machine."""
OPTIONS = {
    "log.cleaner.backoff.ms": "100",
    "log.retention.check.interval.ms": "100",
    "log.segment.delete.delay.ms": "200",
}
COMPACTED = {
    "cleanup.policy": "compact",
    "segment.bytes": "20000",
    "segment.ms": "300",
    "min.cleanable.dirty.ratio": "0.01",
}


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(data_dir=tmp_path, options=OPTIONS) as broker:
        yield broker


def create(broker: EmbeddedBroker, topic: str, **config: str) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    new = NewTopic(topic, 1, 1, config=COMPACTED | {name.replace("_", "."): value for name, value in config.items()})
    admin.create_topics([new])[topic].result()


def produce(broker: EmbeddedBroker, topic: str, pairs: list[tuple[str, str | None]], **config: object) -> None:
    errors: list[object] = []
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "batch.size": 4000, "log_level": 0, **config})
    for key, value in pairs:
        producer.produce(topic, key=key, value=value, on_delivery=lambda error, _: errors.append(error))
        producer.poll(0)
    assert producer.flush(30) == 0
    assert errors == [None] * len(pairs)


def consume(broker: EmbeddedBroker, topic: str) -> list[tuple[int, str, str | None]]:
    """All that is there now: offset, key, value."""
    settings = {"group.id": "g", "enable.partition.eof": True, "auto.offset.reset": "earliest"}
    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, **settings})
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    found = []
    while True:
        message = consumer.poll(PATIENCE_S)
        assert message is not None
        if message.error():
            consumer.close()
            return found
        value = message.value()
        found.append((message.offset(), message.key().decode(), None if value is None else value.decode()))


def set_policy(broker: EmbeddedBroker, topic: str, policy: str) -> None:
    entry = ConfigEntry("cleanup.policy", policy, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    admin.incremental_alter_configs([resource])[resource].result()


def segments_of(broker: EmbeddedBroker, topic: str) -> list[Path]:
    return sorted((Path(broker.data_dir) / f"{topic}-0").glob("*.log"))


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_the_newest_value_of_each_key_stays_at_its_offset(broker: EmbeddedBroker, topic: str, codec: str) -> None:
    create(broker, topic)
    pairs = [(f"key-{n % 50}", f"value {n}") for n in range(5000)]
    produce(broker, topic, pairs, **{"compression.type": codec})

    wait_until(lambda: len(consume(broker, topic)) == 50, "one record for each key", timeout_s=PATIENCE_S)
    assert consume(broker, topic) == [(n, *pairs[n]) for n in range(4950, 5000)]


def test_a_broker_without_numba_and_numpy_compacts_and_says_once_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, topic: str
) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.modules.update(numba=None, numpy=None, llvmlite=None)")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *(path for path in sys.path if path)]))
    with EmbeddedBroker(data_dir=tmp_path / "data", options=OPTIONS) as broker:
        create(broker, topic)
        pairs = [(f"key-{n % 20}", f"value {n}") for n in range(1000)]
        produce(broker, topic, pairs)
        wait_until(lambda: len(consume(broker, topic)) == 20, "one record for each key")
        assert consume(broker, topic) == [(n, *pairs[n]) for n in range(980, 1000)]
        assert broker.log.count("numba is not installed: pip install ") == 1


def test_a_reader_in_the_middle_notices_nothing(broker: EmbeddedBroker, topic: str) -> None:
    """It reads in small pieces from the beginning while segments are replaced under it again and again."""
    create(broker, topic)
    pairs = [(f"key-{n % 100}", f"value {n} " + "x" * 50) for n in range(20_000)]
    produce(broker, topic, pairs[:10_000])
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": "slow",
            "fetch.message.max.bytes": 2000,
            "queued.max.messages.kbytes": 1,
            "check.crcs": True,
        }
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    wait_until(lambda: "compacted" in broker.log, "a first pass, while the reader is at the beginning", PATIENCE_S)
    writer = threading.Thread(target=produce, args=(broker, topic, pairs[10_000:]))
    writer.start()
    seen: dict[str, str] = {}
    offset = -1
    while offset < len(pairs) - 1:
        message = consumer.poll(PATIENCE_S)
        assert message is not None, f"nothing came after offset {offset}"
        assert not message.error(), message.error()
        assert message.offset() > offset
        offset = message.offset()
        assert (message.key().decode(), message.value().decode()) == pairs[offset]
        seen[message.key().decode()] = message.value().decode()
    writer.join()
    consumer.close()
    assert seen == dict(pairs), "whatever was left out had a newer value"
    wait_until(lambda: len(consume(broker, topic)) == 100, "one record for each key", timeout_s=PATIENCE_S)
    wait_until(lambda: broker.log.count("compacted") > 1, "another pass", PATIENCE_S)


def test_a_deleted_key_is_gone_after_its_time_also_for_a_reader_of_the_whole_log(
    broker: EmbeddedBroker, topic: str
) -> None:
    create(broker, topic, delete_retention_ms="100")
    produce(broker, topic, [("kept", "1"), ("gone", "1"), ("gone", None)])

    def only_the_other_is_left() -> bool:
        # Tombstones go with the next pass that finds their time over, and a pass needs something new.
        produce(broker, topic, [("clock", "tick")])
        return {key for _, key, _ in consume(broker, topic)} == {"kept", "clock"}

    wait_until(only_the_other_is_left, "the tombstone goes", timeout_s=PATIENCE_S)


def test_what_was_compacted_is_the_same_after_a_kill(broker: EmbeddedBroker, topic: str) -> None:
    create(broker, topic)
    pairs = [(f"key-{n % 30}", f"value {n}") for n in range(3000)]
    produce(broker, topic, pairs)
    wait_until(lambda: len(consume(broker, topic)) == 30, "one record for each key", timeout_s=PATIENCE_S)
    before = consume(broker, topic)
    broker.kill()
    broker.start()
    assert consume(broker, topic) == before
    produce(broker, topic, [("key-0", "after")])
    assert consume(broker, topic)[-1] == (3000, "key-0", "after")


def helper_of(broker: EmbeddedBroker) -> psutil.Process | None:
    children = psutil.Process(broker.pid).children()
    return next((child for child in children if "skep.storage.compaction.compaction_helper" in child.cmdline()), None)


def test_the_helper_process_dies_with_the_broker_and_is_replaced_when_it_dies(
    broker: EmbeddedBroker, topic: str
) -> None:
    create(broker, topic)
    produce(broker, topic, [(f"key-{n % 30}", f"value {n}") for n in range(3000)])
    helper = wait_until(lambda: helper_of(broker), "a helper is started", timeout_s=PATIENCE_S)
    os.kill(helper.pid, signal.SIGKILL)
    wait_until(lambda: not helper.is_running() or helper.status() == psutil.STATUS_ZOMBIE, "it is dead")
    assert len(consume(broker, topic)) >= 30, "the broker goes on"
    other = f"{topic}-2"
    create(broker, other)
    produce(broker, other, [(f"key-{n % 30}", f"value {n}") for n in range(3000)])
    wait_until(lambda: len(consume(broker, other)) == 30, "another log is compacted", timeout_s=PATIENCE_S)
    second = helper_of(broker)
    assert second is not None
    assert second.pid != helper.pid
    broker.kill()
    wait_until(lambda: not second.is_running(), "it ends when the broker is killed")
    broker.start()


def test_a_topic_can_be_deleted_while_it_is_compacted(broker: EmbeddedBroker, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    for number in range(3):
        create(broker, topic)
        produce(broker, topic, [(f"key-{n % 30}", f"{number}") for n in range(3000)])
        wait_until(
            lambda: broker.log.count("compacted") or helper_of(broker), "compaction has begun", timeout_s=PATIENCE_S
        )
        admin.delete_topics([topic])[topic].result()
        wait_until(lambda: topic not in admin.list_topics(timeout=PATIENCE_S).topics, "the topic is gone")
        wait_until(lambda: not (broker.data_dir / f"{topic}-0").exists(), "its files are gone")
    create(broker, topic)
    produce(broker, topic, [("key", "value")])
    assert consume(broker, topic) == [(0, "key", "value")]
    assert "Traceback" not in broker.log


def test_a_damaged_log_is_left_alone_and_others_are_compacted(broker: EmbeddedBroker, topic: str) -> None:
    create(broker, topic, cleanup_policy="delete")
    produce(broker, topic, [(f"key-{n % 30}", f"value {n}") for n in range(3000)])
    first = segments_of(broker, topic)[0]
    with first.open("r+b") as file:
        file.seek(200)
        file.write(b"damage")
    content = first.read_bytes()
    set_policy(broker, topic, "compact")
    other = f"{topic}-2"
    create(broker, other)
    produce(broker, other, [(f"key-{n % 30}", f"value {n}") for n in range(3000)])
    wait_until(lambda: len(consume(broker, other)) == 30, "the other log is compacted", timeout_s=PATIENCE_S)
    wait_until(
        lambda: f"{topic}-0: the log is damaged and is no longer compacted" in broker.log,
        "one line about the damage",
        timeout_s=PATIENCE_S,
    )
    assert broker.log.count("the log is damaged and is no longer compacted") == 1
    assert first.read_bytes() == content


def test_a_compacted_topic_takes_no_record_without_a_key(broker: EmbeddedBroker, topic: str) -> None:
    create(broker, topic)
    errors: list[object] = []
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    producer.produce(topic, value="no key", on_delivery=lambda error, _: errors.append(error))
    producer.flush(30)
    assert [error.name() for error in errors] == ["INVALID_RECORD"]
    produce(broker, topic, [("key", "value")])
    assert consume(broker, topic) == [(0, "key", "value")]


def test_compaction_and_deletion_by_size_together(broker: EmbeddedBroker, topic: str) -> None:
    create(broker, topic, cleanup_policy="compact,delete", retention_bytes="30000")
    produce(broker, topic, [(f"key-{n}", "x" * 100) for n in range(3000)])

    def only_the_newest_are_left() -> bool:
        offsets = [offset for offset, _, _ in consume(broker, topic)]
        # A reader whose segment is deleted under it goes on at the log start.
        return offsets[0] > 2000 and offsets == list(range(offsets[0], 3000))

    wait_until(only_the_newest_are_left, "old segments go though every key is there once")
