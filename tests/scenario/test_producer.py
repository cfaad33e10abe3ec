"""The producer for columns: nothing lost, doubled or out of order, whatever happens to responses and brokers."""

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import skep
from skep.base.errors import ErrorCode, KafkaError
from skep.client.admin import create_topic
from skep.client.cluster_client import ClusterClient
from skep.client.connection import Connection
from skep.client.errors import ClientError, TimedOut
from skep.client.produce import delivery
from skep.client.produce import producer as producing
from skep.client.produce.produce_pipe import Completed, ProducePipe
from skep.client.produce.producer import Producer
from skep.client.produce.transactions import end_transaction, init_producer_id, list_open_transactions
from skep.records.columnar import RecordColumns, RecordTooLarge
from skep.records.compression import Codec
from skep.testing import EmbeddedBroker
from skep.wire.apis import PRODUCE
from tests.waiting import PATIENCE_S, wait_until


@pytest.fixture
def cluster(skep_broker: EmbeddedBroker) -> Iterator[ClusterClient]:
    with ClusterClient(skep_broker.bootstrap_servers) as cluster:
        yield cluster


def numbers(first: int, count: int) -> RecordColumns:
    """Rows whose values are numbers, so that what is missing, doubled or moved shows."""
    return RecordColumns(None, pa.array([b"%d" % number for number in range(first, first + count)]))


def values(broker: EmbeddedBroker, topic: str, partition: int = 0, **options: Any) -> list[int]:
    table = skep.read_arrow(broker.bootstrap_servers, topic, partitions=[partition], **options)
    return [int(value) for value in table["value"].to_pylist()]


@pytest.mark.parametrize("codec", Codec)
def test_rows_arrive_in_order_in_every_codec(
    skep_broker: EmbeddedBroker, cluster: ClusterClient, topic: str, codec: Codec
) -> None:
    create_topic(cluster, topic, 2)
    with Producer(cluster, codec=codec, batch_bytes=2_000) as producer:
        producer.send(topic, 0, numbers(0, 3_000))
        producer.send(topic, 1, numbers(0, 3_000), np.arange(0, 3_000, 3))
        producer.flush()
        assert producer.written == {(topic, 0): (0, 2_999, 3_000), (topic, 1): (0, 999, 1_000)}
    assert values(skep_broker, topic, 0) == list(range(3_000))
    assert values(skep_broker, topic, 1) == list(range(0, 3_000, 3))


def test_the_buffer_stays_within_its_bound(cluster: ClusterClient, topic: str) -> None:
    create_topic(cluster, topic, 1)
    with Producer(cluster, batch_bytes=10_000, buffer_bytes=30_000) as producer:
        for start in range(0, 20_000, 1_000):
            producer.send(topic, 0, numbers(start, 1_000))
            assert producer._delivery.queue.unacknowledged_bytes <= 30_000


def test_a_response_that_is_lost_again_and_again_doubles_nothing(
    skep_broker: EmbeddedBroker, cluster: ClusterClient, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = 0

    class Lossy(ProducePipe):
        """The third response on each connection never arrives, though what it acknowledges is written."""

        taken = 0

        def read(self) -> Iterator[Completed]:
            nonlocal lost
            for completed in super().read():
                self.taken += 1
                if self.taken == 3:
                    lost += 1
                    self._requests.appendleft(self._completed)
                    raise self._connection.lost(PRODUCE, ConnectionResetError())
                yield completed

        def _complete(self, frame: memoryview) -> Completed:
            self._completed = self._requests[0]
            return super()._complete(frame)

    monkeypatch.setattr(delivery, "ProducePipe", Lossy)
    monkeypatch.setattr(delivery, "PAUSE_S", 0.001)
    create_topic(cluster, topic, 2)
    with Producer(cluster, batch_bytes=1_000) as producer:
        for start in range(0, 5_000, 500):
            producer.send(topic, 0, numbers(start, 500))
            producer.send(topic, 1, numbers(start, 500))
        producer.flush()
        assert producer.written == {(topic, 0): (0, 4_999, 5_000), (topic, 1): (0, 4_999, 5_000)}
    assert lost > 3
    for partition in (0, 1):
        assert values(skep_broker, topic, partition) == list(range(5_000))


@pytest.mark.parametrize("transactional_id", [None, "across-restarts"])
def test_a_broker_that_is_killed_in_the_middle_costs_time_and_no_row(
    skep_fresh_broker: EmbeddedBroker, topic: str, transactional_id: str | None
) -> None:
    broker = skep_fresh_broker
    sent = threading.Event()

    def interfere() -> None:
        for _ in range(3):
            sent.wait(PATIENCE_S)
            sent.clear()
            broker.kill()
            broker.restart()

    with ClusterClient(broker.bootstrap_servers) as cluster:
        create_topic(cluster, topic, 2)
        killer = threading.Thread(target=interfere)
        killer.start()
        options = {"transaction_timeout_ms": 900_000, "batch_bytes": 2_000, "buffer_bytes": 50_000}
        with Producer(cluster, transactional_id=transactional_id, **options) as producer:
            producer.begin()
            for start in range(0, 60_000, 1_000):
                producer.send(topic, 0, numbers(start, 1_000))
                producer.send(topic, 1, numbers(start, 1_000))
                if start % 20_000 == 10_000:
                    sent.set()
                    wait_until(lambda: not sent.is_set(), "the broker is being killed")
            killer.join()
            producer.flush()
            assert producer.written == {(topic, 0): (0, 59_999, 60_000), (topic, 1): (0, 59_999, 60_000)}
            if transactional_id is not None:
                assert values(broker, topic) == []
                producer.commit(until_visible=True)
    for partition in (0, 1):
        assert values(broker, topic, partition) == list(range(60_000))


def test_a_broker_that_freezes_is_left_and_found_again(skep_fresh_broker: EmbeddedBroker, topic: str) -> None:
    broker = skep_fresh_broker
    with ClusterClient(broker.bootstrap_servers) as cluster:
        create_topic(cluster, topic, 1)
        with Producer(cluster, batch_bytes=1_000, request_timeout_s=0.5) as producer:
            producer.send(topic, 0, numbers(0, 1_000))
            producer.flush()
            broker.pause()
            thawing = threading.Timer(1.5, broker.resume)
            thawing.start()
            producer.send(topic, 0, numbers(1_000, 1_000))
            producer.flush()
            thawing.join()
    assert values(broker, topic) == list(range(2_000))


def test_a_broker_that_stays_away_is_an_error_that_names_the_partition(
    skep_fresh_broker: EmbeddedBroker, topic: str
) -> None:
    with ClusterClient(skep_fresh_broker.bootstrap_servers) as cluster:
        create_topic(cluster, topic, 1)
        with Producer(cluster, delivery_timeout_s=8) as producer:
            producer.send(topic, 0, numbers(0, 10))
            producer.flush()
            skep_fresh_broker.kill()
            producer.send(topic, 0, numbers(10, 10))
            with pytest.raises(KafkaError, match=f"topic '{topic}', partition 0: .*no broker answers at") as given_up:
                producer.flush()
            assert given_up.value.code is ErrorCode.network_exception
            with pytest.raises(KafkaError) as again:
                producer.send(topic, 0, numbers(20, 1))
            assert again.value is given_up.value


def test_a_topic_that_is_not_there_is_said_soon(cluster: ClusterClient, topic: str) -> None:
    with Producer(cluster) as producer:
        producer.send(topic, 0, numbers(0, 1))
        with pytest.raises(KafkaError, match=f"'{topic}'") as missing:
            producer.flush()
        assert missing.value.code is ErrorCode.unknown_topic_or_partition


def test_a_large_row_has_a_batch_of_its_own_and_the_others_keep_their_size(
    skep_broker: EmbeddedBroker, cluster: ClusterClient, topic: str
) -> None:
    create_topic(cluster, topic, 1, {"max.message.bytes": str(12 << 20)})
    rows = [b"a" * 100, b"b" * (10 << 20), b"c" * 100, b"d" * (11 << 20), b"e" * (11 << 20), b"f"]
    with Producer(cluster, max_batch_bytes=12 << 20) as producer:
        producer.send(topic, 0, RecordColumns(None, pa.array(rows)))
        producer.send(topic, 0, RecordColumns(None, pa.array(rows)), np.array([5, 4, 3, 0]))
    table = skep.read_arrow(skep_broker.bootstrap_servers, topic)
    assert table["value"].to_pylist() == [*rows, rows[5], rows[4], rows[3], rows[0]]


@pytest.mark.parametrize("rows", [None, np.array([0, 2, 1])])
def test_a_row_that_is_too_large_is_named_by_its_place_in_the_columns(
    cluster: ClusterClient, topic: str, rows: np.ndarray | None
) -> None:
    create_topic(cluster, topic, 1)
    columns = RecordColumns(None, pa.array([b"a", b"b" * 5_000 if rows is None else b"b", b"c" * 6_000]))
    with Producer(cluster, batch_bytes=100, max_batch_bytes=5_500) as producer:
        with pytest.raises(RecordTooLarge) as refused:
            producer.send(topic, 0, columns, rows)
        assert (refused.value.row, refused.value.limit) == (2, 5_500)
        producer.send(topic, 0, numbers(0, 5))
        producer.flush()


def test_rows_without_acknowledged_sequence_numbers_can_be_asked_for(
    skep_broker: EmbeddedBroker, cluster: ClusterClient, topic: str
) -> None:
    create_topic(cluster, topic, 1)
    with Producer(cluster, acks=1) as producer:
        producer.send(topic, 0, numbers(0, 100))
        producer.flush()
        assert producer.identity.producer_id == -1
    assert values(skep_broker, topic) == list(range(100))


def test_producers_use_the_connections_of_their_cluster_one_after_the_other(
    cluster: ClusterClient, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = 0
    connect = cluster._connect

    def counted(host: str, port: int) -> Connection:
        nonlocal made
        made += 1
        return connect(host, port)

    monkeypatch.setattr(cluster, "_connect", counted)
    create_topic(cluster, topic, 1)
    for start in range(5):
        with Producer(cluster) as producer:
            producer.send(topic, 0, numbers(start, 1))
    assert made == 2, "one for questions to anybody, one to the broker"


def test_a_closed_producer_takes_nothing(cluster: ClusterClient, topic: str) -> None:
    producer = Producer(cluster)
    producer.close()
    with pytest.raises(ClientError, match="closed"):
        producer.send(topic, 0, numbers(0, 1))


class TestTransactions:
    """With a transactional id."""

    def test_what_is_committed_is_seen_and_what_is_aborted_is_not(
        self, skep_broker: EmbeddedBroker, cluster: ClusterClient, topic: str
    ) -> None:
        create_topic(cluster, topic, 1)
        with Producer(cluster, transactional_id=topic) as producer:
            for start, is_good in ((0, True), (100, False), (200, True)):
                producer.begin()
                producer.send(topic, 0, numbers(start, 100))
                if is_good:
                    producer.commit(until_visible=True)
                else:
                    producer.flush()
                    producer.abort()
            wait_until(lambda: len(values(skep_broker, topic)) == 200, "both are visible")
        assert values(skep_broker, topic) == [*range(100), *range(200, 300)]
        assert len(values(skep_broker, topic, isolation="read_uncommitted")) == 300

    def test_aborting_with_rows_on_their_way_leaves_a_producer_that_works(
        self, skep_broker: EmbeddedBroker, cluster: ClusterClient, topic: str
    ) -> None:
        create_topic(cluster, topic, 1)
        with Producer(cluster, transactional_id=topic, batch_bytes=1_000) as producer:
            producer.begin()
            epoch = producer.identity.producer_epoch
            producer.send(topic, 0, numbers(0, 50_000))
            producer.abort()
            assert producer.identity.producer_epoch > epoch
            producer.begin()
            producer.send(topic, 0, numbers(50_000, 1_000))
            producer.commit(until_visible=True)
        assert values(skep_broker, topic) == list(range(50_000, 51_000))

    def test_a_transaction_without_rows_leaves_no_trace(self, cluster: ClusterClient, topic: str) -> None:
        with Producer(cluster, transactional_id=topic) as producer:
            producer.begin()
            assert list_open_transactions(cluster, topic) == []
            producer.commit()
            producer.begin()
            producer.abort()

    def test_a_successor_fences_and_aborts_what_was_left_open(
        self, skep_broker: EmbeddedBroker, cluster: ClusterClient, topic: str
    ) -> None:
        create_topic(cluster, topic, 1)
        with Producer(cluster, transactional_id=topic) as first, Producer(cluster, transactional_id=topic) as second:
            first.begin()
            first.send(topic, 0, numbers(0, 10))
            first.flush()
            assert list_open_transactions(cluster, topic) == [(topic, first.identity.producer_id)]
            second.begin()
            assert list_open_transactions(cluster, topic) == []
            first.send(topic, 0, numbers(10, 10))
            with pytest.raises(KafkaError, match=f"'{topic}'") as fenced:
                first.flush()
            assert fenced.value.code in (ErrorCode.invalid_producer_epoch, ErrorCode.producer_fenced)
            with pytest.raises(KafkaError) as again:
                first.abort()
            assert again.value is fenced.value
            second.send(topic, 0, numbers(20, 10))
            second.commit(until_visible=True)
            first.close()
        assert values(skep_broker, topic) == list(range(20, 30))

    def test_somebody_else_can_end_a_transaction_that_was_left_open(
        self, skep_broker: EmbeddedBroker, cluster: ClusterClient, topic: str
    ) -> None:
        create_topic(cluster, topic, 1)
        for commit in (True, False):
            with Producer(cluster, transactional_id=topic) as producer:
                producer.begin()
                producer.send(topic, 0, numbers(0, 10))
                producer.flush()
                identity = producer.identity
            for _ in range(3):
                end_transaction(cluster, topic, identity, commit=commit, until_visible=True)
            with pytest.raises(KafkaError) as refused:
                end_transaction(cluster, topic, identity, commit=not commit)
            assert refused.value.code is ErrorCode.invalid_txn_state
        assert values(skep_broker, topic) == list(range(10))

    @pytest.mark.parametrize("failure", [KafkaError(ErrorCode.producer_fenced), KeyboardInterrupt()])
    def test_what_is_committed_stays_so_whatever_the_wait_for_readers_ends_with(
        self,
        skep_broker: EmbeddedBroker,
        cluster: ClusterClient,
        topic: str,
        monkeypatch: pytest.MonkeyPatch,
        failure: BaseException,
    ) -> None:
        def fail(*args: Any, **options: Any) -> None:
            raise failure

        create_topic(cluster, topic, 1)
        monkeypatch.setattr(producing, "wait_until_visible", fail)
        with Producer(cluster, transactional_id=topic) as producer:
            producer.begin()
            producer.send(topic, 0, numbers(0, 10))
            with pytest.raises(type(failure)):
                producer.commit(until_visible=True)
            producer.abort()
            producer.begin()
            producer.send(topic, 0, numbers(10, 10))
            producer.commit()
        wait_until(lambda: values(skep_broker, topic) == list(range(20)), "both are visible")

    def test_aborting_after_a_commit_whose_response_was_lost_says_that_it_was_committed(
        self, cluster: ClusterClient, topic: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def lose(*args: Any, commit: bool, **options: Any) -> None:
            end_transaction(*args, commit=commit, **options)
            if commit:
                raise TimedOut("the response was lost")

        create_topic(cluster, topic, 1)
        monkeypatch.setattr(producing, "end_transaction", lose)
        with Producer(cluster, transactional_id=topic) as producer:
            producer.begin()
            producer.send(topic, 0, numbers(0, 10))
            with pytest.raises(TimedOut):
                producer.commit()
            with pytest.raises(KafkaError, match="the commit has succeeded; there is nothing to abort") as refused:
                producer.abort()
            assert refused.value.code is ErrorCode.invalid_txn_state

    def test_one_that_timed_out_cannot_be_committed(self, topic: str) -> None:
        options = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "100"}
        with EmbeddedBroker(options=options) as broker, ClusterClient(broker.bootstrap_servers) as cluster:
            create_topic(cluster, topic, 1)
            with Producer(cluster, transactional_id=topic, transaction_timeout_ms=6_000) as producer:
                producer.begin()
                producer.send(topic, 0, numbers(0, 10))
                producer.flush()
                wait_until(lambda: list_open_transactions(cluster, topic) == [], "the transaction has timed out")
                with pytest.raises(KafkaError, match=r"its timeout is 6000 ms \(transaction_timeout_ms\)") as refused:
                    producer.commit()
                assert refused.value.code in (ErrorCode.producer_fenced, ErrorCode.invalid_producer_epoch)
            init_producer_id(cluster, topic, 1_000)
            assert values(broker, topic) == []
