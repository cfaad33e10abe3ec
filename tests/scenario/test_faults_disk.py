"""Full and read-only disks, as the kernel makes them: KAFKA_STORAGE_ERROR, reading goes on, and so does all else."""

import os
import resource
from pathlib import Path

import pytest

from skep.base.errors import ErrorCode
from skep.testing import EmbeddedBroker
from skep.wire import apis
from tests.fuzz.witness import Witness
from tests.raw_client import RawClient
from tests.raw_requests import Want, batch_of, create_topics_body
from tests.scenario.disk_box import boxed_broker, boxed_interpreter
from tests.scenario.kill_history import values_from
from tests.waiting import wait_until

TOPIC = "filling"
VALUE_BYTES = 10_000
"""More than a page: what is left of a page that is in use can still be written to on a full disk."""

UNWATCHED = {f"skep.disk.{step}.ratio": "1.0" for step in ("clean", "force", "refuse")}
flushing = pytest.mark.parametrize("flush_messages", ["1", "9223372036854775807"], ids=["synced", "unsynced"])


def value(number: int) -> bytes:
    return (b"%d " % number).ljust(VALUE_BYTES, b".")


def append_until_refused(client: RawClient, first: int, partition: int = 0) -> int:
    """Appends numbered values; the first number that was refused, and it was refused for the disk."""
    for number in range(first, first + 5_000):
        produced = client.produce(TOPIC, batch_of(value(number)), partition=partition)
        if produced.error_code is not ErrorCode.none:
            assert produced.error_code is ErrorCode.kafka_storage_error
            assert produced.base_offset == -1
            return number
        assert produced.base_offset == number
    raise AssertionError("the disk has no end")


@flushing
def test_a_full_disk_refuses_what_it_cannot_hold_and_goes_on_when_there_is_space(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flush_messages: str
) -> None:
    options = {**UNWATCHED, "log.flush.interval.messages": flush_messages}
    with boxed_broker(tmp_path, monkeypatch, options) as (broker, disk):
        with RawClient(broker.bootstrap_servers) as client:
            client.create_topic(TOPIC, partitions=2)
            client.append(TOPIC, batch_of(value(0)))
            client.append(TOPIC, batch_of(value(0)), partition=1)
            disk.fill()
            count = append_until_refused(client, 1)
            for partition in (0, 1):
                refused = client.produce(TOPIC, batch_of(value(999)), partition=partition)
                assert refused.error_code is ErrorCode.kafka_storage_error
            assert list(values_from(client, TOPIC, 0, 0)) == [value(number) for number in range(count)]
            disk.empty()
            wait_until(
                lambda: client.produce(TOPIC, batch_of(value(count))).error_code is ErrorCode.none, "produce to go on"
            )
            values = list(values_from(client, TOPIC, 0, 0))
            assert values == [value(number) for number in range(count + 1)]
            assert client.append(TOPIC, batch_of(value(1)), partition=1) == 1
        assert "Traceback" not in broker.log


def test_topics_cannot_be_made_on_a_full_disk_and_can_again_when_there_is_space(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with boxed_broker(tmp_path, monkeypatch, UNWATCHED) as (broker, disk):
        with RawClient(broker.bootstrap_servers) as client:
            client.create_topic(TOPIC)
            client.append(TOPIC, batch_of(value(0)))
            disk.fill()
            names = [f"new-{number}" for number in range(200)]
            codes = [create(client, name) for name in names]
            assert set(codes) - {ErrorCode.none}, "the disk was not full"
            assert set(codes) <= {ErrorCode.none, ErrorCode.kafka_storage_error, ErrorCode.coordinator_not_available}
            assert client.fetch_one(Want(TOPIC, 0)).records
            disk.empty()
            again = [name for name, code in zip(names, codes, strict=True) if code is not ErrorCode.none]
            for name in again:
                wait_until(lambda name=name: create(client, name) is ErrorCode.none, f"{name} to be made")
                assert client.append(name, batch_of(b"x")) == 0
        assert "Traceback" not in broker.log


def create(client: RawClient, name: str) -> ErrorCode:
    [topic] = client.ask(apis.CREATE_TOPICS, 7, **create_topics_body(name)).topics
    code: ErrorCode = topic.error_code
    return code


def test_a_disk_that_fills_up_refuses_produce_before_it_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"skep.disk.check.interval.ms": "20"}
    with boxed_broker(tmp_path, monkeypatch, options, size=32 << 20) as (broker, disk):
        with RawClient(broker.bootstrap_servers) as client:
            client.create_topic(TOPIC)
            client.append(TOPIC, batch_of(value(0)))
            disk.fill(0.95)
            wait_until(lambda: "produce is refused" in broker.log, "the broker to notice")
            refused = client.produce(TOPIC, batch_of(value(1)))
            assert refused.error_code is ErrorCode.kafka_storage_error
            assert "skep.disk.refuse.ratio" in refused.error_message
            assert list(values_from(client, TOPIC, 0, 0)) == [value(0)]
            disk.empty()
            wait_until(lambda: "produce is accepted again" in broker.log, "the broker to notice")
            assert client.append(TOPIC, batch_of(value(1))) == 1


def test_a_disk_that_fills_up_loses_its_oldest_segments_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"skep.disk.check.interval.ms": "20", "log.segment.bytes": "200000", "skep.disk.force.ratio": "0.85"}
    with boxed_broker(tmp_path, monkeypatch, options, size=32 << 20) as (broker, disk):
        with RawClient(broker.bootstrap_servers) as client:
            client.create_topic(TOPIC)
            for number in range(300):
                assert client.append(TOPIC, batch_of(value(number))) == number
            disk.fill(0.88)
            wait_until(lambda: client.list_offset(TOPIC, -2).offset > 0, "the log start to move")
            wait_until(lambda: disk.used_ratio <= 0.85, "the disk to have room again")
            # A check that looked at the disk earlier may still delete. Each check logs that it deletes above 75 %; when
            # the second one from now does, those before have ended.
            checks = broker.log.count("full, deleting")
            wait_until(lambda: broker.log.count("full, deleting") >= checks + 2, "the disk to be checked again")
            start = client.list_offset(TOPIC, -2).offset
            assert list(values_from(client, TOPIC, 0, start)) == [value(number) for number in range(start, 300)]
            assert client.append(TOPIC, batch_of(value(300))) == 300
            assert "early, because the disk is filling up" in broker.log


@flushing
def test_a_file_that_cannot_grow_concerns_its_partition_alone(flush_messages: str) -> None:
    """A limit on the size of files stands for a disk that only one partition is on."""
    with EmbeddedBroker(options={"log.flush.interval.messages": flush_messages}) as broker:
        with Witness(broker) as witness, RawClient(broker.bootstrap_servers) as client:
            client.create_topic(TOPIC, partitions=2)
            for number in range(300):
                client.append(TOPIC, batch_of(value(number)))
            limits = resource.prlimit(broker.pid, resource.RLIMIT_FSIZE)
            resource.prlimit(broker.pid, resource.RLIMIT_FSIZE, (3_200_000, limits[1]))
            count = append_until_refused(client, 300)
            assert append_until_refused(client, count) == count
            assert client.append(TOPIC, batch_of(value(0)), partition=1) == 0
            witness.go_on(10)
            assert len(list(values_from(client, TOPIC, 0, 0))) == count
            resource.prlimit(broker.pid, resource.RLIMIT_FSIZE, limits)
            assert client.append(TOPIC, batch_of(value(count))) == count
        broker.kill()
        broker.start()
        with RawClient(broker.bootstrap_servers) as client:
            assert list(values_from(client, TOPIC, 0, 0)) == [value(number) for number in range(count + 1)]


def test_a_broker_does_not_start_on_a_disk_that_it_cannot_write_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with boxed_interpreter(tmp_path, monkeypatch, "ro") as data:
        with pytest.raises(RuntimeError, match="Read-only file system") as told:
            EmbeddedBroker(data_dir=data).start()
    assert "Traceback" not in str(told.value)
    assert len(str(told.value).splitlines()) == 1


def test_a_partition_whose_disk_turns_read_only_is_read_on_and_written_again_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {**UNWATCHED, "skep.max.open.files": "1", "log.flush.interval.messages": "1"}
    with (
        boxed_broker(tmp_path, monkeypatch, options, size=32 << 20) as (broker, disk),
        Witness(broker) as witness,
        RawClient(broker.bootstrap_servers) as client,
    ):
        client.create_topic(TOPIC)
        path = os.fspath(broker.data_dir / f"{TOPIC}-0")
        assert disk.run("mkdir", path)
        assert disk.run("mount", "-t", "tmpfs", "tmpfs", path)
        assert client.append(TOPIC, batch_of(value(0))) == 0
        # The kernel waits until nobody has the partition's files open to write; the witness's take their place.
        wait_until(lambda: disk.run("mount", "-o", "remount,ro", path), "the disk to be made read-only", timeout_s=120)
        refused = client.produce(TOPIC, batch_of(value(1)))
        assert refused.error_code is ErrorCode.kafka_storage_error
        assert list(values_from(client, TOPIC, 0, 0)) == [value(0)]
        witness.go_on(10)
        assert disk.run("mount", "-o", "remount,rw", path)
        wait_until(lambda: client.produce(TOPIC, batch_of(value(1))).error_code is ErrorCode.none, "produce to go on")
        assert list(values_from(client, TOPIC, 0, 0)) == [value(0), value(1)]
        assert "Traceback" not in broker.log
