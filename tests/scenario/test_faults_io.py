"""Disks that fail writes and syncs: refused, never acknowledged, other partitions go on, and it heals by itself."""

import errno
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from skep.base.errors import ErrorCode
from tests.fuzz.witness import Witness
from tests.raw_client import RawClient
from tests.raw_requests import Want, batch_of
from tests.scenario.faulty_broker import FaultyBroker, faulty_broker
from tests.scenario.kill_history import values_from
from tests.waiting import wait_until

TOPIC = "failing"
SYNCED = "1"
UNSYNCED = "9223372036854775807"


@pytest.fixture(params=[SYNCED, UNSYNCED], ids=["synced", "unsynced"])
def broker(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyBroker]:
    options = {"log_flush_interval_messages": request.param, "skep_disk_refuse_ratio": "1.0"}
    with faulty_broker(tmp_path / "data", monkeypatch, **options) as found:
        yield found


@pytest.fixture
def synced_broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyBroker]:
    with faulty_broker(tmp_path / "data", monkeypatch, log_flush_interval_messages=SYNCED) as found:
        yield found


def values_in(client: RawClient, topic: str = TOPIC, partition: int = 0) -> list[bytes]:
    return list(values_from(client, topic, partition, 0))


FAULTS = {
    "input/output error": ("pwritev", errno.EIO),
    "disk full": ("pwritev", errno.ENOSPC),
    "quota exceeded": ("pwritev", errno.EDQUOT),
    "read-only": ("pwritev", errno.EROFS),
    "a part is written": ("short write", 0),
}


@pytest.mark.parametrize(("call", "error"), FAULTS.values(), ids=FAULTS)
def test_a_write_that_fails_is_refused_and_the_next_takes_its_place(
    broker: FaultyBroker, call: str, error: int
) -> None:
    with RawClient(broker.bootstrap_servers) as client:
        client.create_topic(TOPIC)
        assert client.append(TOPIC, batch_of(b"before")) == 0
        broker.os.fail(call, f"{TOPIC}-0", error)
        for _ in range(3):
            produced = client.produce(TOPIC, batch_of(b"refused"))
            assert produced.error_code is ErrorCode.kafka_storage_error
            assert produced.base_offset == -1
        assert broker.os.failed >= 3
        assert values_in(client) == [b"before"]
        broker.os.heal()
        assert client.append(TOPIC, batch_of(b"after")) == 1
        assert values_in(client) == [b"before", b"after"]


def test_one_partitions_disk_does_not_concern_the_others(broker: FaultyBroker) -> None:
    with Witness(broker) as witness, RawClient(broker.bootstrap_servers) as client:
        client.create_topic(TOPIC, partitions=2)
        for partition in (0, 1):
            client.append(TOPIC, batch_of(b"before"), partition=partition)
        for call in ("pwritev", "fdatasync", "fsync"):
            broker.os.fail(call, f"{TOPIC}-0")
        assert client.produce(TOPIC, batch_of(b"refused")).error_code is ErrorCode.kafka_storage_error
        assert client.append(TOPIC, batch_of(b"fine"), partition=1) == 1
        witness.go_on(10)
        assert values_in(client) == [b"before"]
        assert values_in(client, partition=1) == [b"before", b"fine"]


def test_a_sync_that_fails_is_never_an_acknowledgement(synced_broker: FaultyBroker) -> None:
    """And what could not be synced is not shown to readers: a power cut might take it back."""
    with RawClient(synced_broker.bootstrap_servers) as client:
        client.create_topic(TOPIC)
        assert client.append(TOPIC, batch_of(b"before")) == 0
        synced_broker.os.fail("fdatasync", f"{TOPIC}-0")
        produced = client.produce(TOPIC, batch_of(b"not synced"))
        assert produced.error_code is ErrorCode.kafka_storage_error
        assert client.list_offset(TOPIC, -1).offset == 1
        assert values_in(client) == [b"before"]
        # Nothing more is taken while it is not known what the disk has.
        assert client.produce(TOPIC, batch_of(b"refused")).error_code is ErrorCode.kafka_storage_error


def test_a_log_heals_when_its_disk_does_without_a_restart(synced_broker: FaultyBroker) -> None:
    with RawClient(synced_broker.bootstrap_servers) as client:
        client.create_topic(TOPIC)
        client.append(TOPIC, batch_of(b"before"))
        synced_broker.os.fail("fdatasync", f"{TOPIC}-0")
        refused = [client.produce(TOPIC, batch_of(b"refused %d" % n)).error_code for n in range(3)]
        assert set(refused) == {ErrorCode.kafka_storage_error}
        synced_broker.os.heal()
        wait_until(
            lambda: client.produce(TOPIC, batch_of(b"after")).error_code is ErrorCode.none, "the log to take appends"
        )
        values = values_in(client)
        # The first refused one was written, only its sync failed: it may be there. The others never were.
        assert values[0] == b"before"
        assert values[-1] == b"after"
        assert set(values[1:-1]) <= {b"refused 0"}


def test_a_producers_retry_after_a_failed_sync_is_not_written_twice(synced_broker: FaultyBroker) -> None:
    with RawClient(synced_broker.bootstrap_servers) as client:
        client.create_topic(TOPIC)
        ids = {"producer_id": client.new_producer_id(), "producer_epoch": 0}
        client.append(TOPIC, batch_of(b"0", **ids, base_sequence=0))
        synced_broker.os.fail("fdatasync", f"{TOPIC}-0")
        batch = batch_of(b"1", **ids, base_sequence=1)
        assert client.produce(TOPIC, batch).error_code is ErrorCode.kafka_storage_error
        synced_broker.os.heal()
        wait_until(lambda: client.produce(TOPIC, batch).error_code is ErrorCode.none, "the retry to be accepted")
        assert client.append(TOPIC, batch_of(b"2", **ids, base_sequence=2)) == 2
        assert values_in(client) == [b"0", b"1", b"2"]


def test_requests_in_a_pipeline_are_each_told_and_in_order(synced_broker: FaultyBroker) -> None:
    with RawClient(synced_broker.bootstrap_servers) as client:
        client.create_topic(TOPIC, partitions=2)
        client.append(TOPIC, batch_of(b"before"))
        synced_broker.os.fail("fdatasync", f"{TOPIC}-0")
        for number in range(20):
            client.send_produce(TOPIC, batch_of(b"%d" % number), partition=number % 2)
        codes = [client.receive_produced().error_code for _ in range(20)]
        assert codes == [ErrorCode.kafka_storage_error, ErrorCode.none] * 10


def test_a_new_partition_that_cannot_be_made_is_refused_and_made_later(broker: FaultyBroker) -> None:
    with RawClient(broker.bootstrap_servers) as client:
        client.create_topic(TOPIC)
        broker.os.fail("open to write", f"{TOPIC}-0", errno.EROFS)
        assert client.produce(TOPIC, batch_of(b"refused")).error_code is ErrorCode.kafka_storage_error
        fetched = client.fetch_one(Want(TOPIC, 0))
        assert fetched.error_code is ErrorCode.none
        broker.os.heal()
        assert client.append(TOPIC, batch_of(b"after")) == 0


def test_a_read_that_fails_is_that_partitions_error_and_nobody_elses(broker: FaultyBroker) -> None:
    with Witness(broker) as witness, RawClient(broker.bootstrap_servers) as client:
        client.create_topic(TOPIC)
        client.append(TOPIC, batch_of(b"before"))
        broker.os.fail("pread", f"{TOPIC}-0")
        assert client.fetch_one(Want(TOPIC, 0)).error_code is ErrorCode.kafka_storage_error
        witness.go_on(5)
        broker.os.heal()
        assert values_in(client) == [b"before"]


def test_a_failing_disk_is_told_in_the_log_and_not_with_tracebacks(
    synced_broker: FaultyBroker, caplog: pytest.LogCaptureFixture
) -> None:
    with RawClient(synced_broker.bootstrap_servers) as client, caplog.at_level(logging.INFO):
        client.create_topic(TOPIC)
        client.append(TOPIC, batch_of(b"before"))
        synced_broker.os.fail("fdatasync", f"{TOPIC}-0")
        client.produce(TOPIC, batch_of(b"refused"))
        told = wait_until(lambda: [r for r in caplog.records if "sync failed" in r.getMessage()], "a log line")
        assert TOPIC in told[0].getMessage()
        assert all(record.exc_info is None for record in caplog.records)
