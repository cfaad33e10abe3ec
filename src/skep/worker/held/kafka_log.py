"""The log of a held partition, as a client of the cluster reads and writes it.

Reading is read_committed. A release is one transaction, under a transactional id that belongs to the partition: a
second worker for it, after a change of leaders, fences the first. The one read of what is not committed yet is
``overtaken``.
"""

import contextlib
import time
from collections.abc import Collection, Generator, Iterable, Sequence
from typing import Any
from uuid import UUID

from confluent_kafka import (
    OFFSET_BEGINNING,
    TIMESTAMP_NOT_AVAILABLE,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)

from skep.base.errors import ErrorCode
from skep.base.errors import KafkaError as CodeError
from skep.client.cluster_client import ClusterClient, Node
from skep.client.errors import ClientError
from skep.client.fetch.partition_fetch import fetch_partition
from skep.client.security.client_security import ClientSecurity
from skep.client.topic_info import find_leader
from skep.records.record import batches_in, iterate_records
from skep.wire.apis import OFFSET_FOR_LEADER_EPOCH
from skep.worker.held.held_index import Position
from skep.worker.held.plan import RELEASED
from skep.worker.held.transition import Firing, HeldRecord, Output
from skep.worker.job import Settings

TRANSACTION_TIMEOUT_S = 30.0
CALL_TIMEOUT_S = 20.0
COMMIT_TIMEOUT_S = 60.0
_GAP_BYTES = 1 << 20
_LARGEST_RECORD = 100 << 20
_CUT = (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE, KafkaError._LOG_TRUNCATION)
_TOO_LARGE = (KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.INVALID_RECORD)
_PURGED = (KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT)
"""The errors that librdkafka reports for the other records when one fails, sometimes before that one."""
_NO_TOPIC = (
    KafkaError._UNKNOWN_TOPIC,
    KafkaError._UNKNOWN_PARTITION,
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError.TOPIC_EXCEPTION,
)


class Unavailable(Exception):
    """The cluster is unavailable, or another worker has taken over this partition. The work starts again later."""


class LogCut(Exception):
    """The log no longer has what was read from it, or not all that was not yet read."""


class Refused(Exception):
    """The cluster refuses one of the records for good."""


class NoTopic(Refused):
    """One of the records is for a topic that does not exist."""

    def __init__(self, topic: str, why: str) -> None:
        super().__init__(f"{topic}: {why}")
        self.topic = topic


class KafkaLog:
    """Owns a consumer, a transactional producer and a connection, from ``open`` to ``close``.

    After any exception it can only be closed: a new one begins where the committed log ends.
    """

    def __init__(self, settings: Settings, topic: str, topic_id: UUID, partition: int) -> None:
        self._settings = settings
        self._topic, self._topic_id, self._partition = topic, topic_id, partition
        self._cluster = ClusterClient(
            settings.bootstrap,
            client_id=settings.client_id,
            timeout_s=CALL_TIMEOUT_S,
            security=ClientSecurity(settings.security),
        )
        self._leader: Node | None = None
        self._producer: Producer | None = None
        self._consumer: Consumer | None = None
        self._delivered: list[int] = []
        self._error: KafkaError | None = None
        self._error_topic = ""

    # Opening and closing.

    def open(self) -> None:
        """Fences the previous worker of the partition. When this returns, its transactions have ended."""
        with _translated():
            found, self._leader = find_leader(self._cluster, self._topic, self._partition)
        if found != self._topic_id or self._leader is None or self._leader.node_id != self._settings.node_id:
            raise Unavailable("this broker does not lead the partition")
        self._producer = Producer(
            {
                **self._settings.security,
                "bootstrap.servers": self._settings.bootstrap,
                "client.id": self._settings.client_id,
                "transactional.id": f"skep.held.{self._topic_id.hex}-{self._partition}",
                "transaction.timeout.ms": int(TRANSACTION_TIMEOUT_S * 1000),
                "message.max.bytes": _LARGEST_RECORD,
                "partitioner": "murmur2_random",
                "linger.ms": 2,
                "topic.metadata.propagation.max.ms": 5000,
                "log_level": 0,
            }
        )
        self._transact(self._producer.init_transactions, CALL_TIMEOUT_S)

    def was_cut(self, position: Position) -> bool:
        """Returns whether the log no longer has everything up to the position, as after a power cut."""
        if position.leader_epoch < 0:
            return position.next_offset > 0
        assert self._leader is not None, "open"
        wanted = {
            "partition": self._partition,
            "current_leader_epoch": -1,
            "leader_epoch": position.leader_epoch,
        }
        body = {"replica_id": -1, "topics": [{"topic": self._topic, "partitions": [wanted]}]}
        with _translated():
            response = self._cluster.ask_node(self._leader, OFFSET_FOR_LEADER_EPOCH, body)
            [found] = response.topics[0].partitions
            if found.error_code is not ErrorCode.none:
                raise Unavailable(found.error_code.name)
        return bool(found.leader_epoch != position.leader_epoch or found.end_offset < position.next_offset)

    def read_from(self, offset: int) -> None:
        self._consumer = Consumer(
            {
                **self._settings.security,
                "bootstrap.servers": self._settings.bootstrap,
                "client.id": self._settings.client_id,
                "group.id": "skep.held",  # needed, and not used: nothing is committed
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "isolation.level": "read_committed",
                "auto.offset.reset": "error",
                "allow.auto.create.topics": False,
                "queued.max.messages.kbytes": 8 << 10,
                "queued.min.messages": 50_000,
                "fetch.message.max.bytes": 1 << 20,
                "fetch.error.backoff.ms": 50,
                "log_level": 0,
            }
        )
        self._consumer.assign([TopicPartition(self._topic, self._partition, offset or OFFSET_BEGINNING)])

    def close(self) -> None:
        if self._consumer is not None:
            self._consumer.close()
        self._consumer = self._producer = None
        self._cluster.close()

    # Reading.

    def read(self, timeout_s: float, most: int) -> tuple[list[HeldRecord], int | None]:
        """Returns the next records, and the offset after the last one if there was nothing behind them."""
        assert self._consumer is not None, "open"
        with _translated():
            first = self._consumer.poll(timeout_s)
            if first is None:
                return [], None
            messages = [first, *self._consumer.consume(most - 1, 0)]
        records: list[HeldRecord] = []
        end = None
        for message in messages:
            error = message.error()
            if error is None:
                end = None
                records.append(held_record(message))
            elif error.code() == KafkaError._PARTITION_EOF:
                end = message.offset()
            elif error.code() in _CUT:
                raise LogCut(str(error))
            else:
                raise Unavailable(str(error))
        return records, end

    def end_offset(self) -> int:
        """Returns where the log ends now."""
        assert self._consumer is not None, "open"
        with _translated():
            return int(self._consumer.get_watermark_offsets(TopicPartition(self._topic, self._partition), 5)[1])

    def overtaken(self, keys: Collection[bytes], start: int, own: Collection[int]) -> dict[bytes, int]:
        """Returns which of the keys others have written to, and where: from ``start`` to the last of our own offsets.

        Also what is in transactions that are open or aborted: whether it counts is not known yet.
        """
        assert self._leader is not None, "open"
        found: dict[bytes, int] = {}
        last, deadline = max(own), time.monotonic() + CALL_TIMEOUT_S
        with _translated():
            while start <= last:
                if time.monotonic() > deadline:
                    raise Unavailable("the leader does not have what it has acknowledged")
                fetched = fetch_partition(
                    self._cluster,
                    self._leader,
                    self._topic,
                    self._topic_id,
                    self._partition,
                    start,
                    max_bytes=_GAP_BYTES,
                    committed=False,
                    max_wait_ms=500,
                )
                if fetched.error_code is not ErrorCode.none:
                    raise Unavailable(fetched.error_code.name)
                for header, batch in batches_in(fetched.records):
                    is_ours = header.base_offset in own
                    if header.last_offset >= start and not header.is_control and not is_ours:
                        for record in iterate_records(batch):
                            key, offset = record.key or b"", record.offset
                            if key in keys and start <= offset <= last:
                                found[key] = offset
                    start = max(start, header.next_offset)
        return found

    # A transaction: replace, then abort, or send and commit.

    def replace(self, firings: Sequence[Firing]) -> list[int]:
        """Begins a transaction with the next version of each entry. Returns the offsets of these."""
        assert self._producer is not None, "open"
        self._delivered, self._error = [], None
        with _translated():
            self._producer.begin_transaction()
            for entry, _, next_headers in firings:
                headers: list[Any] = [*(next_headers or ()), (RELEASED, str(entry.offset).encode())]
                self._producer.produce(
                    self._topic,
                    None if next_headers is None else entry.value,
                    entry.key,
                    self._partition,
                    headers=headers,
                    on_delivery=self._on_delivery,
                )
        self._flush()
        return list(self._delivered)

    def send(self, outputs: Iterable[Output]) -> None:
        assert self._producer is not None, "open"
        with _translated():
            for topic, key, value, given in outputs:
                headers: list[Any] = [*given]
                try:
                    self._producer.produce(topic, value, key, headers=headers, on_delivery=self._on_delivery)
                except KafkaException as error:
                    raise _translation(error, topic) from error
        self._flush()

    def commit(self) -> None:
        assert self._producer is not None, "open"
        self._transact(self._producer.commit_transaction, COMMIT_TIMEOUT_S)

    def abort(self) -> None:
        assert self._producer is not None, "open"
        self._transact(self._producer.abort_transaction, CALL_TIMEOUT_S)

    def _on_delivery(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            if self._error is None or self._error.code() in _PURGED:
                self._error, self._error_topic = error, message.topic() or ""
        else:
            self._delivered.append(message.offset() or 0)

    def _flush(self) -> None:
        assert self._producer is not None, "open"
        left = self._producer.flush(CALL_TIMEOUT_S)
        if self._error is not None:
            raise _translation(KafkaException(self._error), self._error_topic)
        if left:
            raise Unavailable("writing takes too long")

    def _transact(self, call: Any, timeout_s: float) -> None:
        """Makes a call of the producer, again where it says that this is safe. Raises Unavailable."""
        for _ in range(3):
            try:
                call(timeout_s)
                return
            except KafkaException as error:
                if not error.args[0].retriable():
                    raise _translation(error) from error
                last = error
        raise _translation(last) from last


def held_record(message: Any) -> HeldRecord:
    """Returns confluent-kafka's message as a record of a held topic."""
    kind, timestamp_ms = message.timestamp()
    leader_epoch = message.leader_epoch()
    return HeldRecord(
        message.offset(),
        -1 if leader_epoch is None else leader_epoch,
        0 if kind == TIMESTAMP_NOT_AVAILABLE else timestamp_ms,
        message.key() or b"",
        message.value(),
        tuple(message.headers() or ()),
    )


def _translation(error: KafkaException, topic: str = "") -> Exception:
    if topic and error.args[0].code() in _NO_TOPIC:
        return NoTopic(topic, error.args[0].str())
    return (Refused if error.args[0].code() in _TOO_LARGE else Unavailable)(error.args[0].str())


@contextlib.contextmanager
def _translated() -> Generator[None, None, None]:
    try:
        yield
    except KafkaException as error:
        raise _translation(error) from error
    except (ClientError, CodeError, OSError) as error:
        raise Unavailable(str(error)) from error
