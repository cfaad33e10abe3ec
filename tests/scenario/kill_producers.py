"""Producers that do not mind when the broker dies under them; all they are told goes into the history."""

import itertools
import struct
import threading
from collections import deque
from typing import Any

from confluent_kafka import Producer

from skep.base.errors import ErrorCode
from tests.raw_client import RawClient
from tests.raw_requests import batch_of
from tests.scenario.kill_history import History

WINDOW = 5
"""Requests in flight, as idempotent clients have them; the broker remembers as many batches of a producer."""
BETWEEN_TRIES_S = 0.01


class BatchProducer(threading.Thread):
    """Sends batches of one to three records on one connection, several at a time, and again on the next connection.

    Not idempotent, it forgets what was not answered when the connection broke. Idempotent, it sends that again under
    the same sequence numbers. ``failure`` says what it was told that it should not have been.
    """

    def __init__(
        self, name: str, bootstrap_servers: str, history: History, topic: str, partition: int, *, is_idempotent: bool
    ) -> None:
        super().__init__(name=name, daemon=True)
        self._bootstrap_servers = bootstrap_servers
        self._history = history
        self._where = (topic, partition)
        self._is_idempotent = is_idempotent
        self._producer_id = -1
        self._sequence = 0
        self._numbers = itertools.count()
        self._unanswered: deque[tuple[list[bytes], bytes]] = deque()
        self._stopping = threading.Event()
        self.acknowledged = 0
        self.failure: str | None = None

    def stop(self) -> None:
        self._stopping.set()

    def run(self) -> None:
        while not self._stopping.is_set() and self.failure is None:
            try:
                with RawClient(self._bootstrap_servers, client_id=self.name) as client:
                    self._talk(client)
            except (OSError, struct.error):
                self._stopping.wait(BETWEEN_TRIES_S)
        if self._is_idempotent and self.failure is None:
            self._finish()

    def _finish(self) -> None:
        """What is still unanswered is sent until it is answered: an idempotent producer leaves nothing open."""
        while self._unanswered and self.failure is None:
            try:
                with RawClient(self._bootstrap_servers, client_id=self.name) as client:
                    self._send_again(client)
                    while self._unanswered and self.failure is None:
                        self._receive(client)
            except (OSError, struct.error):
                threading.Event().wait(BETWEEN_TRIES_S)

    def _talk(self, client: RawClient) -> None:
        if not self._is_idempotent:
            self._unanswered.clear()
        elif self._producer_id < 0:
            self._producer_id = client.new_producer_id()
        self._send_again(client)
        while not self._stopping.is_set() and self.failure is None:
            while len(self._unanswered) < WINDOW:
                self._send_new(client)
            self._receive(client)

    def _send_again(self, client: RawClient) -> None:
        for _, batch in self._unanswered:
            client.send_produce(self._where[0], batch, partition=self._where[1])

    def _send_new(self, client: RawClient) -> None:
        number = next(self._numbers)
        values = [b"%s %d.%d" % (self.name.encode(), number, part) for part in range(1 + number % 3)]
        sequence: dict[str, Any] = {}
        if self._is_idempotent:
            sequence = {"producer_id": self._producer_id, "producer_epoch": 0, "base_sequence": self._sequence}
            self._sequence += len(values)
        batch = batch_of(*values, **sequence)
        self._history.sent(values)
        self._unanswered.append((values, batch))
        client.send_produce(self._where[0], batch, partition=self._where[1])

    def _receive(self, client: RawClient) -> None:
        produced = client.receive_produced()
        if produced.error_code is not ErrorCode.none:
            self.failure = f"{self.name}: {produced.error_code.name} {produced.error_message}"
            return
        values, _ = self._unanswered.popleft()
        self._history.acknowledged(*self._where, produced.base_offset, values)
        self.acknowledged += 1


class LibrdkafkaProducer(threading.Thread):
    """An idempotent librdkafka producer that lives through all deaths of the broker."""

    def __init__(self, name: str, bootstrap_servers: str, history: History, topic: str, partition: int) -> None:
        super().__init__(name=name, daemon=True)
        self._history = history
        self._where = (topic, partition)
        self._stopping = threading.Event()
        self.acknowledged = 0
        self.failure: str | None = None
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap_servers,
                "enable.idempotence": True,
                "linger.ms": 1,
                "reconnect.backoff.ms": 10,
                "reconnect.backoff.max.ms": 50,
                "retry.backoff.ms": 10,
                "message.timeout.ms": 120_000,
                "error_cb": self._on_error,
                "log_level": 0,
            }
        )

    def stop(self) -> None:
        self._stopping.set()

    def run(self) -> None:
        for number in itertools.count():
            if self._stopping.is_set():
                break
            value = b"%s %d" % (self.name.encode(), number)
            self._history.sent([value])
            self._producer.produce(self._where[0], value, partition=self._where[1], on_delivery=self._on_delivery)
            # A hundred in flight; then wait for one.
            self._producer.poll(0.1 if len(self._producer) > 100 else 0.001)
        if self._producer.flush(60):
            self.failure = f"{self.name}: {len(self._producer)} messages were never answered"

    def _on_error(self, error: Any) -> None:
        if error.fatal():
            self.failure = f"{self.name}: {error}"

    def _on_delivery(self, error: Any, message: Any) -> None:
        if error is not None:
            self.failure = f"{self.name}: {error}"
            return
        self._history.acknowledged(*self._where, message.offset(), [message.value()])
        self.acknowledged += 1
