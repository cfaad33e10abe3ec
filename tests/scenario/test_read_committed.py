"""Transactions as a partition's readers see them, over a socket: markers are written by hand, without a coordinator."""

from collections.abc import Iterator
from typing import Any

import pytest

from skep.base.errors import ErrorCode
from skep.records.record import records_in
from skep.testing import EmbeddedBroker
from skep.wire import apis
from tests.raw_client import RawClient
from tests.raw_requests import Want, batch_of, produce_body, seconds
from tests.waiting import wait_until

COMMITTED = 1
UNVERIFIED = {"transaction.partition.verification.enable": "false"}


@pytest.fixture(scope="module")
def unverified_broker() -> Iterator[EmbeddedBroker]:
    """Takes the first batch of a transaction without asking the coordinator, whom these tests do without."""
    with EmbeddedBroker(options=UNVERIFIED) as broker:
        yield broker


@pytest.fixture
def client(unverified_broker: EmbeddedBroker) -> Iterator[RawClient]:
    with RawClient(unverified_broker.bootstrap_servers) as client:
        yield client


@pytest.fixture
def other(unverified_broker: EmbeddedBroker) -> Iterator[RawClient]:
    with RawClient(unverified_broker.bootstrap_servers, client_id="other") as client:
        yield client


def write(
    client: RawClient,
    topic: str,
    producer: int,
    sequence: int,
    *values: bytes,
    transactional_id: str | None = "t",
    **o: Any,
) -> Any:
    options = {"is_transactional": True, "producer_epoch": 0, **o}
    batch = batch_of(*(values or (b"v",)), producer_id=producer, base_sequence=sequence, **options)
    body = {**produce_body({(topic, 0): batch}), "transactional_id": transactional_id}
    [[produced]] = [t.partition_responses for t in client.ask(apis.PRODUCE, 9, **body).responses]
    return produced


def mark(
    client: RawClient, topic: str, producer: int, *, committed: bool, epoch: int = 0, coordinator_epoch: int = 0
) -> ErrorCode:
    marker = {
        "producer_id": producer,
        "producer_epoch": epoch,
        "transaction_result": committed,
        "topics": [{"name": topic, "partition_indexes": [0]}],
        "coordinator_epoch": coordinator_epoch,
    }
    [answered] = client.ask(apis.WRITE_TXN_MARKERS, 1, markers=[marker]).markers
    [[partition]] = [t.partitions for t in answered.topics]
    return partition.error_code


def fetch(client: RawClient, topic: str, offset: int = 0, isolation_level: int = COMMITTED, **options: Any) -> Any:
    return client.fetch_one(Want(topic, offset), isolation_level=isolation_level, **options)


def aborted_in(partition: Any) -> list[tuple[int, int]] | None:
    if partition.aborted_transactions is None:
        return None
    return [(one.producer_id, one.first_offset) for one in partition.aborted_transactions]


def test_a_reader_of_committed_records_stops_where_the_oldest_transaction_begins(client: RawClient, topic: str) -> None:
    client.create_topic(topic)
    client.append(topic, batch_of(b"before"))
    write(client, topic, 1, 0, b"open")
    client.append(topic, batch_of(b"behind"))
    partition = fetch(client, topic)
    assert [record.value for record in records_in(partition.records)] == [b"before"]
    assert (partition.high_watermark, partition.last_stable_offset) == (3, 1)
    everything = fetch(client, topic, isolation_level=0)
    assert len(list(records_in(everything.records))) == 3
    assert (everything.last_stable_offset, aborted_in(everything)) == (1, None)
    assert client.list_offset(topic, -1).offset == 3
    assert client.list_offset(topic, -1, isolation_level=COMMITTED).offset == 1
    assert mark(client, topic, 1, committed=True) is ErrorCode.none
    partition = fetch(client, topic)
    assert [record.value for record in records_in(partition.records)] == [b"before", b"open", b"behind"]
    assert (partition.last_stable_offset, aborted_in(partition)) == (4, [])
    assert client.list_offset(topic, -1, isolation_level=COMMITTED).offset == 4


@pytest.mark.parametrize("version", [4, 5, 7, 11, 12])
def test_aborted_transactions_come_with_the_records_they_are_in(client: RawClient, topic: str, version: int) -> None:
    client.create_topic(topic)
    write(client, topic, 1, 0, b"a", b"b")
    write(client, topic, 2, 0, b"c")
    assert mark(client, topic, 1, committed=False) is ErrorCode.none
    assert mark(client, topic, 2, committed=True) is ErrorCode.none
    assert aborted_in(fetch(client, topic, version=version)) == [(1, 0)]
    assert aborted_in(fetch(client, topic, 3, version=version)) == [(1, 0)]
    assert aborted_in(fetch(client, topic, 4, version=version)) == []
    assert aborted_in(fetch(client, topic, isolation_level=0, version=version)) is None


def test_a_reader_that_waits_is_woken_by_the_marker(client: RawClient, other: RawClient, topic: str) -> None:
    client.create_topic(topic)
    write(client, topic, 1, 0, b"x" * 2000)
    other.send_fetch(Want(topic, 0), isolation_level=COMMITTED, max_wait_s=20, min_bytes=1500)
    write(client, topic, 1, 1, b"y" * 2000)
    assert mark(client, topic, 1, committed=True) is ErrorCode.none
    [[partition]] = [t.partitions for t in other.receive().responses]
    assert [len(record.value or b"") for record in records_in(partition.records)] == [2000, 2000]


def test_what_does_not_belong_into_a_transaction_is_refused(client: RawClient, topic: str) -> None:
    client.create_topic(topic)
    assert write(client, topic, 1, 0, transactional_id=None).error_code is (
        ErrorCode.transactional_id_authorization_failed
    )
    assert write(client, topic, -1, -1, producer_epoch=-1).error_code is ErrorCode.invalid_record
    assert write(client, topic, 1, 0).error_code is ErrorCode.none
    assert write(client, topic, 1, 1, is_transactional=False).error_code is ErrorCode.invalid_txn_state
    assert write(client, topic, 1, 1, is_control=True).error_code is ErrorCode.invalid_record
    assert write(client, topic, 1, 1).error_code is ErrorCode.none


def test_markers_fence(client: RawClient, topic: str) -> None:
    client.create_topic(topic)
    write(client, topic, 1, 0)
    assert mark(client, topic, 1, committed=False, epoch=1, coordinator_epoch=3) is ErrorCode.none
    assert write(client, topic, 1, 1).error_code is ErrorCode.invalid_producer_epoch
    assert mark(client, topic, 1, committed=False) is ErrorCode.invalid_producer_epoch
    fenced = mark(client, topic, 1, committed=True, epoch=1, coordinator_epoch=2)
    assert fenced is ErrorCode.transaction_coordinator_fenced


def test_producers_are_described(client: RawClient, topic: str) -> None:
    client.create_topic(topic)
    write(client, topic, 5, 0)
    mark(client, topic, 5, committed=True, coordinator_epoch=2)
    write(client, topic, 5, 1, b"a", b"b")
    write(client, topic, 6, 9, is_transactional=False, producer_epoch=4)
    body = {"topics": [{"name": topic, "partition_indexes": [0, 7]}]}
    [described] = client.ask(apis.DESCRIBE_PRODUCERS, 0, **body).topics
    found, unknown = described.partitions
    assert unknown.error_code is ErrorCode.unknown_topic_or_partition
    shown = [
        (p.producer_id, p.producer_epoch, p.last_sequence, p.coordinator_epoch, p.current_txn_start_offset)
        for p in found.active_producers
    ]
    assert sorted(shown) == [(5, 0, 2, 2, 2), (6, 4, 9, -1, -1)]
    assert all(p.last_timestamp > 0 for p in found.active_producers)


@pytest.mark.parametrize("is_killed", [False, True], ids=["stopped", "killed"])
def test_transactions_are_the_same_after_a_restart(topic: str, is_killed: bool) -> None:
    with EmbeddedBroker(options=UNVERIFIED) as broker:
        with RawClient(broker.bootstrap_servers) as client:
            client.create_topic(topic, segment_bytes=500)
            for sequence in range(10):
                write(client, topic, 1, sequence, b"x" * 100)
                mark(client, topic, 1, committed=sequence % 3 == 0)
            write(client, topic, 1, 10)
            client.append(topic, batch_of(b"behind"))
            before = [aborted_in(fetch(client, topic, offset)) for offset in range(20)]
        if is_killed:
            broker.kill()
        broker.restart()
        with RawClient(broker.bootstrap_servers) as client:
            assert client.list_offset(topic, -1, isolation_level=COMMITTED).offset == 20
            assert [aborted_in(fetch(client, topic, offset)) for offset in range(20)] == before
            assert sum(map(len, before)) >= 6
            assert write(client, topic, 1, 11, is_transactional=False).error_code is ErrorCode.invalid_txn_state
            mark(client, topic, 1, committed=False)
            assert client.list_offset(topic, -1, isolation_level=COMMITTED).offset == 23


def test_a_partition_that_is_no_part_of_the_transaction_takes_none_of_its_records(skep_broker, topic: str) -> None:
    with RawClient(skep_broker.bootstrap_servers) as client:
        client.create_topic(topic)
        client.ask(apis.FIND_COORDINATOR, 3, key=topic, key_type=1)
        body = {"transactional_id": topic, "transaction_timeout": seconds(60), "producer_id": -1}
        responses = []

        def has_producer_id() -> bool:
            responses.append(client.ask(apis.INIT_PRODUCER_ID, 4, **body))
            return responses[-1].error_code is ErrorCode.none

        wait_until(has_producer_id, "the coordinator gives a producer id")
        produced = write(client, topic, responses[-1].producer_id, 0, transactional_id=topic)
        assert produced.error_code is ErrorCode.invalid_txn_state
        assert client.list_offset(topic, -1).offset == 0
