"""A lane: one share consumer of librdkafka, and the thread that uses it.

librdkafka gives no new records before all of the last poll are acknowledged, and its consumer belongs to one thread.
With a single one a slow record would hold up all handlers. So a queue consumer has several lanes, and each of them
takes few records. The result of a handler is acknowledged at once; the last acknowledgements of a poll are sent with
the next poll.

The locks of records are renewed while they wait here, and while their handlers run, up to the time that a handler may
take. Then the record is released, with the reason. It counts as failed, and any member may get it. A later result of
its handler is ignored.

Where locks cannot be renewed, a lane gives up what is not finished before its lock expires. A record that no handler
has begun must not count as failed. So the lane closes its consumer without acknowledging the record, which makes it
available as if it had not been delivered, and opens another consumer. The same happens to records without a handler
when the queue consumer stops.
"""

import logging
import queue
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from confluent_kafka import AcknowledgeType, IllegalStateException, KafkaException, ShareConsumer, TopicPartition

from skep.queue.delivery import Delivery
from skep.queue.handler_pool import HandlerPool
from skep.queue.leader_commands import LeaderCommands
from skep.queue.message import Outcome, Verdict, message_of
from skep.queue.statistics import Counters

log = logging.getLogger("skep.queue")

LOCK_SHARE = 0.9
"""Of the duration of a lock: how long it can be relied on after a response of the broker."""
RENEW_SHARE = 1 / 3
"""Of the duration of a lock: when it is renewed."""
POLL_S = 0.2
COMMIT_S = 10.0
"""How long a broker may take to confirm acknowledgements, while others wait to be sent."""
SHORTEST_TICK_S = 0.02
PAUSE_S = 0.5
"""Between two attempts after an error."""

ACKNOWLEDGEMENT = {
    Outcome.ACCEPT: AcknowledgeType.ACCEPT,
    Outcome.RETRY: AcknowledgeType.RELEASE,
    Outcome.REJECT: AcknowledgeType.REJECT,
}
COUNTER = {Outcome.ACCEPT: "accepted", Outcome.RETRY: "retried", Outcome.REJECT: "rejected"}


class LaneSettings(NamedTuple):
    topics: tuple[str, ...]
    client: Mapping[str, Any]
    """The properties of librdkafka."""
    size: int
    """The most records that the lane holds."""
    handlers: int
    """How many handlers can run at a time, for all lanes together."""
    lock_s: float
    timeout_s: float
    """How long a handler may take."""


class Lane:
    """Owns a consumer, its thread, and the records that were taken and not acknowledged."""

    def __init__(
        self,
        settings: LaneSettings,
        pool: HandlerPool,
        commands: LeaderCommands,
        counters: Counters,
        on_fatal: Callable[[BaseException], None],
    ) -> None:
        self._settings = settings
        self._pool = pool
        self._commands = commands
        self._counters = counters
        self._on_fatal = on_fatal
        self._stopping = threading.Event()
        self._finished: queue.SimpleQueue[Delivery | None] = queue.SimpleQueue()
        # A record that was released can come again before its release is confirmed.
        self._sent: dict[tuple[str, int, int], deque[Outcome]] = defaultdict(deque)
        self._last_error = ""
        self.thread = threading.Thread(target=self._run, name="skep-lane", daemon=True)

    def stop(self) -> None:
        """Lets the lane end when the handlers that run have ended. Does not wait."""
        self._stopping.set()
        self._finished.put(None)

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                consumer = self._open()
                try:
                    while not self._stopping.is_set() and self._turn(consumer):
                        pass
                    self._commit(consumer)
                finally:
                    self._close(consumer)
        except Exception as error:
            # Without its lanes the consumer would wait for ever.
            self._on_fatal(error)
        finally:
            self._commands.close()

    def _open(self) -> ShareConsumer:
        client = {**self._settings.client, "max.poll.records": self._settings.size}
        consumer = ShareConsumer(client)
        consumer.set_acknowledgement_commit_callback(self._confirmed)
        consumer.subscribe(list(self._settings.topics))
        return consumer

    def _close(self, consumer: ShareConsumer) -> None:
        """Closes the consumer, which gives back the records that were not acknowledged."""
        consumer.close()
        for place, outcomes in self._sent.items():
            for outcome in outcomes:
                self._refused(place, outcome, "there was no response before the consumer was closed")
        self._sent.clear()

    def _turn(self, consumer: ShareConsumer) -> bool:
        """Takes records until all of them are acknowledged. Returns False if the consumer has to be closed."""
        if self._is_stuck():
            self._stopping.wait(PAUSE_S)
            return True
        try:
            polled = consumer.poll(POLL_S)
        except KafkaException as error:
            if error.args[0].fatal():
                raise
            self._report(error.args[0].str())
            return True
        except IllegalStateException as error:
            # librdkafka could not return this record, so it cannot be acknowledged. A new consumer gets it again.
            self._report(str(error))
            return False
        self._last_error = "" if len(polled) else self._last_error
        polled_at = time.monotonic()
        taken = [
            Delivery(message_of(record), self._counters, self._finished.put)
            for record in polled
            if record.error() is None
        ]
        self._counters.add("taken", len(taken))
        for delivery in taken:
            self._pool.submit(delivery)
        return self._see_through(consumer, taken, polled_at)

    def _is_stuck(self) -> bool:
        """Whether every handler runs for a record that was given up. New records would wait here for nothing."""
        return self._counters.now.stuck >= self._settings.handlers

    def _report(self, text: str) -> None:
        """librdkafka continues by itself when the brokers are back. The same error is logged once."""
        if text != self._last_error:
            log.warning("%s: %s", ", ".join(self._settings.topics), text)
        self._last_error = text
        self._stopping.wait(PAUSE_S)

    def _see_through(self, consumer: ShareConsumer, taken: list[Delivery], locked_at: float) -> bool:
        """Acknowledges the deliveries as their handlers end. Returns whether all of them are."""
        unfinished = set(taken)
        lock_s = self._settings.lock_s
        renew_at = locked_at + lock_s * RENEW_SHARE
        returned = 0
        while unfinished:
            if self._stopping.is_set() or self._is_stuck():
                returned += self._withdraw(unfinished)
                if not unfinished:
                    break
            now = time.monotonic()
            if now >= locked_at + lock_s * LOCK_SHARE:
                returned += self._withdraw(unfinished)
                self._give_up(consumer, unfinished, unfinished, "its lock expires, and was not renewed")
            elif slow := {one for one in unfinished if one.runs_since <= now - self._settings.timeout_s}:
                reason = f"the handler did not end within {self._settings.timeout_s:g} s"
                self._give_up(consumer, unfinished, slow, reason)
            elif now >= renew_at:
                renew_at = now + lock_s * RENEW_SHARE
                if (lost := self._commands.renew(unfinished)) is not None:
                    locked_at = now
                    self._give_up(consumer, unfinished, lost, "its lock has expired")
            else:
                # A handler that begins meanwhile is checked a little late.
                tick_s = max(SHORTEST_TICK_S, self._settings.timeout_s / 10)
                next_at = min(renew_at, locked_at + lock_s * LOCK_SHARE, now + tick_s)
                self._finish(consumer, unfinished, self._wait(next_at - now))
        self._counters.add("returned", returned)
        return returned == 0

    def _finish(self, consumer: ShareConsumer, unfinished: set[Delivery], ended: set[Delivery]) -> None:
        """Acknowledges those of the unfinished deliveries that have ended."""
        ended = ended & unfinished
        if ended:
            unfinished -= ended
            self._acknowledge(consumer, ended)
            if unfinished:
                self._commit(consumer)

    def _wait(self, left_s: float) -> set[Delivery]:
        """Returns the deliveries that have ended, when there are some; none when the time is up or the lane stops."""
        ended: set[Delivery] = set()
        try:
            first = self._finished.get(timeout=max(0.0, left_s))
            ended.update(() if first is None else (first,))
            while not self._finished.empty():
                if (another := self._finished.get_nowait()) is not None:
                    ended.add(another)
        except queue.Empty:
            pass
        return ended

    def _withdraw(self, unfinished: set[Delivery]) -> int:
        withdrawn = {delivery for delivery in unfinished if delivery.withdraw()}
        unfinished -= withdrawn
        return len(withdrawn)

    def _give_up(
        self, consumer: ShareConsumer, unfinished: set[Delivery], given_up: set[Delivery], reason: str
    ) -> None:
        """Releases records whose handlers have not ended. Those that have ended meanwhile get their own verdict."""
        for delivery in given_up:
            if delivery.abandon():
                log.warning("%s is to be delivered again: %s", delivery, reason)
                delivery.verdict = Verdict(Outcome.RETRY, reason)
        self._finish(consumer, unfinished, given_up)

    def _acknowledge(self, consumer: ShareConsumer, ended: set[Delivery]) -> None:
        """Marks the deliveries; they are sent with the next poll or commit."""
        self._commands.tell(ended)
        for delivery in ended:
            message, verdict = delivery.message, delivery.verdict
            assert verdict is not None
            place = message.topic, message.partition, message.offset
            try:
                consumer.acknowledge_offset(*place, ACKNOWLEDGEMENT[verdict.outcome])
            except IllegalStateException as error:
                # The member has lost the partition meanwhile. Another member gets the record.
                self._refused(place, verdict.outcome, str(error))
            else:
                self._sent[place].append(verdict.outcome)

    def _commit(self, consumer: ShareConsumer) -> None:
        try:
            consumer.commit_sync(COMMIT_S)
        except KafkaException as error:
            if error.args[0].fatal():
                raise
            self._report(error.args[0].str())

    def _confirmed(self, offsets: dict[TopicPartition, set[int]], error: KafkaException | None) -> None:
        """librdkafka calls it with the response to acknowledgements. It does not repeat those that failed."""
        for partition, acknowledged in offsets.items():
            for offset in acknowledged:
                place = partition.topic, partition.partition, offset
                if not (outcomes := self._sent.get(place)):
                    continue
                outcome = outcomes.popleft()
                if not outcomes:
                    del self._sent[place]
                if error is None:
                    self._counters.add(COUNTER[outcome])
                else:
                    self._refused(place, outcome, error.args[0].str())

    def _refused(self, place: tuple[str, int, int], outcome: Outcome, reason: str) -> None:
        self._counters.add("refused")
        log.warning("%s-%d offset %d: the broker did not take '%s': %s", *place, outcome.value, reason)
