"""Idempotent producers: a batch sent twice is kept once, also when the broker died in between."""

import pytest

from skep.base.errors import ErrorCode
from skep.records.record import records_in
from skep.testing import EmbeddedBroker
from skep.wire import apis
from tests.raw_client import RawClient
from tests.raw_requests import Want, batch_of


def numbered(producer_id: int, sequence: int, *values: bytes, epoch: int = 0) -> bytes:
    return batch_of(
        *(values or (b"%d" % sequence,)), producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence
    )


def values_of(client: RawClient, topic: str) -> list[bytes | None]:
    return [record.value for record in records_in(client.fetch_one(Want(topic, 0)).records)]


@pytest.fixture
def producer_id(client: RawClient, topic: str) -> int:
    client.create_topic(topic)
    return client.new_producer_id()


@pytest.mark.parametrize("version", range(apis.INIT_PRODUCER_ID.oldest, apis.INIT_PRODUCER_ID.newest + 1))
def test_every_producer_gets_an_id_of_its_own(client: RawClient, version: int) -> None:
    responses = [client.ask(apis.INIT_PRODUCER_ID, version, transactional_id=None) for _ in range(3)]
    assert {(response.error_code, response.producer_epoch) for response in responses} == {(ErrorCode.none, 0)}
    assert len({response.producer_id for response in responses}) == 3
    assert all(response.producer_id >= 0 for response in responses)


def test_a_batch_sent_again_is_answered_as_the_first_time(client: RawClient, topic: str, producer_id: int) -> None:
    batch = numbered(producer_id, 0, b"a", b"b")
    assert client.append(topic, batch) == 0
    client.append(topic, numbered(producer_id, 2))
    for _ in range(3):
        again = client.produce(topic, batch)
        assert (again.error_code, again.base_offset) == (ErrorCode.none, 0)
    assert values_of(client, topic) == [b"a", b"b", b"2"]


def test_any_of_the_last_five_batches_is_recognised(client: RawClient, topic: str, producer_id: int) -> None:
    for sequence in range(8):
        client.append(topic, numbered(producer_id, sequence))
    for sequence in (3, 7, 5, 4, 6):
        assert client.produce(topic, numbered(producer_id, sequence)).base_offset == sequence
    older = client.produce(topic, numbered(producer_id, 0))
    assert older.error_code in (ErrorCode.duplicate_sequence_number, ErrorCode.out_of_order_sequence_number)
    assert client.list_offset(topic, -1).offset == 8


def test_a_gap_in_the_sequence_is_refused_and_can_be_filled(client: RawClient, topic: str, producer_id: int) -> None:
    client.append(topic, numbered(producer_id, 0))
    assert client.produce(topic, numbered(producer_id, 2)).error_code is ErrorCode.out_of_order_sequence_number
    client.append(topic, numbered(producer_id, 1))
    client.append(topic, numbered(producer_id, 2))
    assert values_of(client, topic) == [b"0", b"1", b"2"]


def test_a_pipeline_with_a_lost_batch_is_refused_until_it_is_sent_again(
    client: RawClient, topic: str, producer_id: int
) -> None:
    """What a client with five requests under way does when the second of them is refused."""
    small, large = numbered(producer_id, 0), numbered(producer_id, 1, b"x" * (2 << 20))
    client.send_produce(topic, small)
    client.send_produce(topic, large)
    for sequence in (2, 3, 4):
        client.send_produce(topic, numbered(producer_id, sequence))
    codes = [client.receive_produced().error_code for _ in range(5)]
    refused = ErrorCode.out_of_order_sequence_number
    assert codes == [ErrorCode.none, ErrorCode.message_too_large, refused, refused, refused]


def test_a_batch_does_not_overtake_the_retry_of_a_refused_first_one(client: RawClient, topic: str) -> None:
    """librdkafka takes the success of a batch for the success of those before it."""
    producer_id, other_id = client.new_producer_id(), client.new_producer_id()
    first, second = numbered(producer_id, 0), numbered(producer_id, 1)
    assert client.produce(topic, first).error_code is ErrorCode.unknown_topic_or_partition
    client.create_topic(topic)
    for _ in range(2):
        assert client.produce(topic, second).error_code is ErrorCode.not_enough_replicas
    assert client.append(topic, numbered(other_id, 17)) == 0  # it was refused nothing, its records may be deleted
    assert client.append(topic, first) == 1
    assert client.append(topic, second) == 2


def test_a_batch_overtakes_a_refused_one_that_the_producer_has_given_up(client: RawClient, topic: str) -> None:
    producer_id = client.new_producer_id()
    assert client.produce(topic, numbered(producer_id, 0)).error_code is ErrorCode.unknown_topic_or_partition
    client.create_topic(topic)
    assert client.append(topic, numbered(producer_id, 0, b"new", epoch=1)) == 0
    assert values_of(client, topic) == [b"new"]


def test_a_new_epoch_begins_at_0_and_ends_the_old_one(client: RawClient, topic: str, producer_id: int) -> None:
    client.append(topic, numbered(producer_id, 0))
    gap = client.produce(topic, numbered(producer_id, 1, epoch=1))
    assert gap.error_code is ErrorCode.out_of_order_sequence_number
    client.append(topic, numbered(producer_id, 0, b"new", epoch=1))
    late = client.produce(topic, numbered(producer_id, 1, epoch=0))
    assert late.error_code in (ErrorCode.invalid_producer_epoch, ErrorCode.producer_fenced)
    assert values_of(client, topic) == [b"0", b"new"]


def test_sequences_are_counted_per_partition(client: RawClient, topic: str) -> None:
    client.create_topic(topic, 2)
    producer_id = client.new_producer_id()
    for partition in (0, 1):
        assert client.append(topic, numbered(producer_id, 0), partition=partition) == 0
        assert client.append(topic, numbered(producer_id, 1), partition=partition) == 1


def test_a_duplicate_in_a_synced_topic_is_answered_after_the_sync(client: RawClient, topic: str) -> None:
    client.create_topic(topic, flush_messages=1)
    batch = numbered(client.new_producer_id(), 0)
    for _ in range(3):
        client.send_produce(topic, batch)
    assert [client.receive_produced().base_offset for _ in range(3)] == [0, 0, 0]
    assert client.list_offset(topic, -1).offset == 1


def test_an_idempotent_batch_without_a_sequence_is_refused(client: RawClient, topic: str, producer_id: int) -> None:
    batch = batch_of(b"egg", producer_id=producer_id, producer_epoch=0, base_sequence=-1)
    assert client.produce(topic, batch).error_code is ErrorCode.invalid_record


def test_the_sequence_wraps_around(client: RawClient, topic: str, producer_id: int) -> None:
    last = (1 << 31) - 1
    client.append(topic, numbered(producer_id, last - 1, b"a", b"b"))
    client.append(topic, numbered(producer_id, 0, b"c"))
    assert client.produce(topic, numbered(producer_id, last - 1, b"a", b"b")).base_offset == 0
    assert values_of(client, topic) == [b"a", b"b", b"c"]


@pytest.mark.parametrize("is_killed", [False, True], ids=["clean stop", "kill -9"])
def test_sequences_are_known_after_a_restart(skep_fresh_broker: EmbeddedBroker, topic: str, is_killed: bool) -> None:
    broker = skep_fresh_broker
    with RawClient(broker.bootstrap_servers) as client:
        client.create_topic(topic, flush_messages=1)
        first, second = client.new_producer_id(), client.new_producer_id()
        for sequence in range(7):
            client.append(topic, numbered(first, sequence))
        client.append(topic, numbered(second, 0, epoch=3))
    if is_killed:
        broker.kill()
    broker.restart()
    with RawClient(broker.bootstrap_servers) as client:
        for sequence in range(2, 7):
            assert client.produce(topic, numbered(first, sequence)).base_offset == sequence
        assert client.produce(topic, numbered(first, 9)).error_code is ErrorCode.out_of_order_sequence_number
        assert client.append(topic, numbered(first, 7)) == 8
        old_epoch = client.produce(topic, numbered(second, 1, epoch=2))
        assert old_epoch.error_code in (ErrorCode.invalid_producer_epoch, ErrorCode.producer_fenced)
        assert client.append(topic, numbered(second, 1, epoch=3)) == 9
        assert client.new_producer_id() not in (first, second)


def test_an_empty_transactional_id_is_refused(client: RawClient) -> None:
    response = client.ask(apis.INIT_PRODUCER_ID, 4, transactional_id="", producer_id=-1)
    assert response.error_code is ErrorCode.invalid_request
    assert response.producer_id == -1
