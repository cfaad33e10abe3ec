"""Kafka's own dump tool reads what Skep has written: segments, both indexes, producer snapshots.

Needs Apache Kafka's jars, which Maven downloads: ``make test-kafka``. ``make test`` leaves this out.
"""

import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from bench.kafka.nodes import jars
from skep.base.errors import ErrorCode
from skep.coordination.share.share_records import encode_batches
from skep.coordination.share.share_state import DeliveryState, Reason, StateBatch
from skep.metadata.model import id_text
from skep.testing import EmbeddedBroker
from skep.wire import apis
from skep.zookeeper_server import find_java
from tests.raw_client import RawClient
from tests.scenario.test_share_state import GROUP, STATE_TOPIC, ShareClient, find
from tests.waiting import wait_until

pytestmark = pytest.mark.kafka

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
SMALL_SEGMENTS = {"segment.bytes": "20000", "index.interval.bytes": "500"}
DUMPED = (".log", ".index", ".timeindex", ".snapshot")
COMPLAINTS = ("Mismatch", "mismatch", "Exception", "is not", "do not", "out of order")


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(data_dir=tmp_path / "data", options={"log.cleaner.backoff.ms": "100"}) as started:
        yield started


def test_every_codec_in_many_segments(broker: EmbeddedBroker) -> None:
    _create(broker, "all-codecs", SMALL_SEGMENTS)
    for codec in CODECS:
        producer = _producer(broker, **{"compression.type": codec, "enable.idempotence": "true"})
        for i in range(300):
            producer.produce("all-codecs", os.urandom(40), f"{codec} {i}", headers={"codec": codec})
        producer.flush()
    broker.restart()  # a clean stop writes all that waits in memory

    printed = _dump(broker, "all-codecs")

    assert _record_offsets(printed) == list(range(300 * len(CODECS)))
    assert set(re.findall(r"compresscodec: (\w+)", printed)) == set(CODECS)
    assert len(re.findall(r"^offset: \d+ position: \d+$", printed, re.MULTILINE)) > 10, "no entries of an index"
    assert len(re.findall(r"^timestamp: \d+ offset: \d+$", printed, re.MULTILINE)) > 4, "no entries of a time index"
    assert len(set(re.findall(r"^producerId: (\d+) ", printed, re.MULTILINE))) == len(CODECS)


def test_transactions(broker: EmbeddedBroker) -> None:
    _create(broker, "transactional", {})
    producer = _producer(broker, **{"transactional.id": "one"})
    producer.init_transactions()
    for end in (producer.commit_transaction, producer.abort_transaction):
        producer.begin_transaction()
        producer.produce("transactional", "a record")
        producer.flush()
        end()

    printed = _dump(broker, "transactional")

    assert re.findall(r"endTxnMarker: (\w+)", printed) == ["COMMIT", "ABORT"]
    assert _record_offsets(printed) == [0, 1, 2, 3]


def test_a_compacted_log(broker: EmbeddedBroker) -> None:
    _create(broker, "compacted", {**SMALL_SEGMENTS, "cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"})
    producer = _producer(broker)
    for i in range(2000):
        producer.produce("compacted", os.urandom(40), str(i % 10))
    producer.flush()
    wait_until(lambda: _cleaned_up_to(broker, "compacted") > 1000, "a pass of compaction", timeout_s=300)
    broker.restart()

    printed = _dump(broker, "compacted")

    kept = _record_offsets(printed)
    assert kept == sorted(kept)
    assert kept == _consumed_offsets(broker, "compacted", kept[-1])
    assert len(kept) < 2000


def test_the_state_of_share_groups(broker: EmbeddedBroker) -> None:
    with RawClient(broker.bootstrap_servers) as client:
        topic_id = client.create_topic("orders")
        find(client, topic_id)
        share = ShareClient(client, topic_id)
        assert share.initialize(start_offset=5) is ErrorCode.none
        assert share.write(10, 19, start_offset=7) is ErrorCode.none
        assert share.delete() is ErrorCode.none
    [files] = [path.parent for path in broker.data_dir.glob(f"{STATE_TOPIC}-*/*.log") if path.stat().st_size]

    printed = _dump(broker, STATE_TOPIC, int(files.name.rpartition("-")[2]), "--share-group-state-decoder")

    keys = [json.loads(found) for found in re.findall(r" key: (\{.*?\}) payload:", printed)]
    assert [key["type"] for key in keys] == ["0", "1", "0"]
    place = {"groupId": GROUP, "topicId": id_text(topic_id), "partition": 0}
    assert [key["data"] for key in keys] == [place] * 3
    snapshot, update = (
        json.loads(found)["data"] for found in re.findall(r" payload: (\{.*\})$", printed, re.MULTILINE)
    )
    assert (snapshot["stateEpoch"], snapshot["leaderEpoch"], snapshot["startOffset"]) == (0, -1, 5)
    assert snapshot["deliveryCompleteCount"] == 0
    assert snapshot["stateBatches"] == []
    assert (update["leaderEpoch"], update["startOffset"], update["deliveryCompleteCount"]) == (0, 7, 10)
    batch = {"firstOffset": 10, "lastOffset": 19, "deliveryState": 2, "deliveryCount": 1}
    assert update["stateBatches"] == [batch]


def test_the_state_of_share_groups_with_what_kafka_does_not_have(broker: EmbeddedBroker) -> None:
    """Its tools skip the tagged fields, and see the rest."""
    waiting = StateBatch(10, 19, DeliveryState.AVAILABLE, 2, 1, 1_700_000_000_000)
    dying = StateBatch(21, 21, DeliveryState.ARCHIVING, 5, 5, 0, Reason.LIMIT)
    with RawClient(broker.bootstrap_servers) as client:
        topic_id = client.create_topic("orders")
        find(client, topic_id)
        share = ShareClient(client, topic_id)
        assert share.initialize(start_offset=5) is ErrorCode.none
        for generation in (0, 1):
            result = share.ask(
                apis.WRITE_SHARE_GROUP_STATE,
                state_epoch=0,
                leader_epoch=0,
                start_offset=10,
                skep_batches=encode_batches([waiting, dying]),
                skep_generation=generation,
            )
            assert result.error_code is ErrorCode.none
    [files] = [path.parent for path in broker.data_dir.glob(f"{STATE_TOPIC}-*/*.log") if path.stat().st_size]

    printed = _dump(broker, STATE_TOPIC, int(files.name.rpartition("-")[2]), "--share-group-state-decoder")

    _, update, replacement = (
        json.loads(found)["data"] for found in re.findall(r" payload: (\{.*\})$", printed, re.MULTILINE)
    )
    for value in (update, replacement):
        assert value["startOffset"] == 10
        found = [tuple(batch.values()) for batch in value["stateBatches"]]
        assert found == [(10, 19, 0, 2), (21, 21, 3, 5)]


def _cleaned_up_to(broker: EmbeddedBroker, topic: str) -> int:
    checkpoint = broker.data_dir / "cleaner-offset-checkpoint"
    found = re.search(rf"^{topic} 0 (\d+)$", checkpoint.read_text(), re.MULTILINE) if checkpoint.exists() else None
    return int(found[1]) if found else 0


def _create(broker: EmbeddedBroker, topic: str, config: dict[str, str]) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    admin.create_topics([NewTopic(topic, 1, 1, config=config)])[topic].result()


def _producer(broker: EmbeddedBroker, **config: str) -> Producer:
    return Producer(
        {"bootstrap.servers": broker.bootstrap_servers, "batch.size": 3000, "linger.ms": 5, "log_level": 0, **config}
    )


def _dump(broker: EmbeddedBroker, topic: str, partition: int = 0, *options: str) -> str:
    """What the tool prints of all files of a partition. Fails when it complains about one."""
    files = sorted(str(path) for path in (broker.data_dir / f"{topic}-{partition}").iterdir() if path.suffix in DUMPED)
    tool = ["org.apache.kafka.tools.DumpLogSegments", "--deep-iteration", *options]
    command = [find_java(), "-cp", f"{jars()}/*", *tool]
    done = subprocess.run([*command, "--files", ",".join(files)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    complaints = [line for line in (done.stdout + done.stderr).splitlines() if any(c in line for c in COMPLAINTS)]
    assert not complaints
    assert "isvalid: true" in done.stdout
    assert "isvalid: false" not in done.stdout
    return done.stdout


def _record_offsets(printed: str) -> list[int]:
    return [int(found) for found in re.findall(r"^\| offset: (\d+)", printed, re.MULTILINE)]


def _consumed_offsets(broker: EmbeddedBroker, topic: str, last: int) -> list[int]:
    consumer = Consumer(
        {"bootstrap.servers": broker.bootstrap_servers, "group.id": "g", "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([topic])
    offsets: list[int] = []
    while not offsets or offsets[-1] < last:
        message = consumer.poll(1)
        if message is not None:
            assert message.error() is None
            offset = message.offset()
            assert offset is not None
            offsets.append(offset)
    consumer.close()
    return offsets
