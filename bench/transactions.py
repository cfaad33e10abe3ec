"""Rows transactions and transactions-client: what a transaction around every 100 records costs.

*transactions* is the broker alone: one connection, 100 produce requests of one record each sent in one go, in a
transaction (AddPartitionsToTxn in front, EndTxn behind them) and without. *transactions-client* is what users of
confluent-kafka see, several producers at a time: 100 records and ``commit_transaction``, beside 100 records and
``flush``. There the 100 records are one request, and a transaction three; it is three round trips instead of one, also
for the client.
"""

import datetime
import threading
import time
from collections.abc import Callable, Iterator
from time import perf_counter
from typing import Any, NamedTuple

from confluent_kafka import Consumer, Producer, TopicPartition

from bench import frames
from bench.peers import apart, cpu_seconds, create_topic
from bench.raw_client import RawClient
from bench.row import ROUNDS, Row, spread, take_turns
from skep.base.errors import ErrorCode
from skep.records.builder import NewRecord, build_batch
from skep.testing import EmbeddedBroker
from skep.wire import apis

NAMES = ("transactions", "transactions-client")

PRODUCERS = 8
CLIENT_UNITS = 200
"""Of each producer in a run."""
RAW_UNITS = 200
RECORDS = 100
VALUE = bytes(100)

PLAIN, TRANSACTIONAL = "plain", "transactional"
INIT_VERSION, ADD_VERSION, END_VERSION, COORDINATOR_VERSION = 4, 3, 3, 3


class Run(NamedTuple):
    rate: float
    cpu_us: float
    """Of the broker, for 100 records."""

    def __str__(self) -> str:
        return f"{self.rate:,.0f} records/s, {self.cpu_us:.0f} us CPU of the broker for {RECORDS}"


def measure() -> Iterator[Row]:
    yield _raw()
    yield _client()


def _row(name: str, what: str, results: dict[str, list[Run]]) -> Row:
    ours, reference = max(results[TRANSACTIONAL]), max(results[PLAIN])
    return Row(
        name,
        what,
        0.5,
        "at least",
        ours.rate / reference.rate,
        str(ours),
        str(reference),
        details={
            kind: {"rate": spread([r.rate for r in runs]), "cpu_us": spread([r.cpu_us for r in runs])}
            for kind, runs in results.items()
        },
    )


# The broker alone.


class RawProducer:
    """Sends the 100 produce requests of a unit in one go, with what makes them a transaction around them."""

    def __init__(self, client: RawClient, topic: str, transactional_id: str | None) -> None:
        self._client = client
        self._topic = topic
        self._id = transactional_id
        self._sequence = 0
        if transactional_id is not None:
            client.ask(
                frames.request(apis.FIND_COORDINATOR, COORDINATOR_VERSION, {"key": transactional_id, "key_type": 1})
            )
        minute = datetime.timedelta(minutes=1)
        body = {"transactional_id": transactional_id, "transaction_timeout": minute, "producer_id": -1}
        answer = client.ask(frames.request(apis.INIT_PRODUCER_ID, INIT_VERSION, {**body, "producer_epoch": -1}))
        made = frames.body(apis.INIT_PRODUCER_ID, INIT_VERSION, answer)
        self._producer = {"producer_id": made.producer_id, "producer_epoch": made.producer_epoch}

    def unit(self) -> list[bytes]:
        """The frames of the next 100 records."""
        now_ms = time.time_ns() // 1_000_000
        requests = []
        for _ in range(RECORDS):
            batch = build_batch(
                [NewRecord(None, VALUE, now_ms)],
                **self._producer,
                base_sequence=self._sequence,
                is_transactional=self._id is not None,
            )
            self._sequence += 1
            requests.append(frames.produce(self._topic, 0, batch, self._id))
        if self._id is None:
            return requests
        named = {"transactional_id": self._id, **self._producer}
        added: dict[str, Any] = {f"v3_and_below_{name}": value for name, value in named.items()}
        added["v3_and_below_topics"] = [{"name": self._topic, "partitions": [0]}]
        return [
            frames.request(apis.ADD_PARTITIONS_TO_TXN, ADD_VERSION, added),
            *requests,
            frames.request(apis.END_TXN, END_VERSION, {**named, "committed": True}),
        ]

    def send(self, requests: list[bytes]) -> None:
        self._client.send(b"".join(requests))
        answers = [self._client.receive() for _ in requests]
        if self._id is not None:
            added = frames.body(apis.ADD_PARTITIONS_TO_TXN, ADD_VERSION, answers[0])
            code = added.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code
            ended = frames.body(apis.END_TXN, END_VERSION, answers[-1]).error_code
            if (code, ended) != (ErrorCode.none, ErrorCode.none):
                raise RuntimeError(f"the transaction failed: {code.name}, {ended.name}")


def _raw() -> Row:
    with EmbeddedBroker() as broker:
        topics = {PLAIN: "plain", TRANSACTIONAL: "transactional"}
        for topic in topics.values():
            create_topic(broker.bootstrap_servers, topic)
        with RawClient(broker.bootstrap_servers) as client, apart(broker.pid):
            producers = {
                PLAIN: RawProducer(client, topics[PLAIN], None),
                TRANSACTIONAL: RawProducer(client, topics[TRANSACTIONAL], "bench"),
            }

            def run(name: str) -> Run:
                producer = producers[name]
                producer.send(producer.unit())
                units = [producer.unit() for _ in range(RAW_UNITS)]
                cpu, began = cpu_seconds(broker.pid), perf_counter()
                for unit in units:
                    producer.send(unit)
                seconds = perf_counter() - began
                cpu_us = (cpu_seconds(broker.pid) - cpu) / RAW_UNITS * 1e6
                return Run(RAW_UNITS * RECORDS / seconds, cpu_us)

            results = take_turns({name: lambda name=name: run(name) for name in producers}, str)  # type: ignore[misc]
        for topic in topics.values():
            _check_count(broker.bootstrap_servers, topic, ROUNDS * (RAW_UNITS + 1) * RECORDS)
    what = f"{RECORDS} one-record produce requests in a transaction, to the same without, on one connection"
    return _row("transactions", what, results)


# What clients see.


def _client() -> Row:
    topic = "client"
    with EmbeddedBroker() as broker:
        create_topic(broker.bootstrap_servers, topic)
        common = {"bootstrap.servers": broker.bootstrap_servers, "log_level": 0}
        plain = [Producer({**common, "enable.idempotence": True}) for _ in range(PRODUCERS)]
        transactional = [Producer({**common, "transactional.id": f"bench-{n}"}) for n in range(PRODUCERS)]
        for producer in transactional:
            producer.init_transactions(30)

        def run(producers: list[Producer], unit: Callable[[Producer, str], None]) -> Run:
            for producer in producers:
                unit(producer, topic)
            cpu, began = cpu_seconds(broker.pid), perf_counter()
            _together([_repeated(unit, producer, topic) for producer in producers])
            seconds = perf_counter() - began
            units = PRODUCERS * CLIENT_UNITS
            return Run(units * RECORDS / seconds, (cpu_seconds(broker.pid) - cpu) / units * 1e6)

        results = take_turns(
            {PLAIN: lambda: run(plain, _flushed), TRANSACTIONAL: lambda: run(transactional, _committed)}, str
        )
        _check_count(broker.bootstrap_servers, topic, 2 * ROUNDS * PRODUCERS * (CLIENT_UNITS + 1) * RECORDS)
    what = f"confluent-kafka, {PRODUCERS} producers: {RECORDS} records and commit_transaction, to {RECORDS} and flush"
    return _row("transactions-client", what, results)


def _flushed(producer: Producer, topic: str) -> None:
    for _ in range(RECORDS):
        producer.produce(topic, VALUE)
    if producer.flush(60):
        raise RuntimeError("records were not acknowledged in time")


def _committed(producer: Producer, topic: str) -> None:
    producer.begin_transaction()
    for _ in range(RECORDS):
        producer.produce(topic, VALUE)
    producer.commit_transaction(60)


def _repeated(unit: Callable[[Producer, str], None], producer: Producer, topic: str) -> Callable[[], None]:
    def repeat() -> None:
        for _ in range(CLIENT_UNITS):
            unit(producer, topic)

    return repeat


def _together(jobs: list[Callable[[], None]]) -> None:
    failures: list[BaseException] = []

    def guarded(job: Callable[[], None]) -> None:
        try:
            job()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=guarded, args=(job,)) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


def _check_count(bootstrap_servers: str, topic: str, expected: int) -> None:
    """A read_committed reader gets every record: all transactions are committed."""
    options = {
        "bootstrap.servers": bootstrap_servers,
        "group.id": "bench",
        "isolation.level": "read_committed",
        "enable.partition.eof": True,
        "log_level": 0,
    }
    consumer = Consumer(options)
    consumer.assign([TopicPartition(topic, 0, 0)])
    count, is_at_end = 0, False
    while not is_at_end:
        for message in consumer.consume(10_000, 10):
            is_at_end = message.error() is not None
            count += message.error() is None
    consumer.close()
    if count != expected:
        raise RuntimeError(f"{expected} records were committed, a reader gets {count}")
