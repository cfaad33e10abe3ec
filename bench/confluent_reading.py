"""A partition through confluent-kafka's ``consume``, as fast as that goes: the reference of the rows that read.

What was tried with a million records on one processor, M records/s of three turns each:

    librdkafka's defaults, consume(10000)                           0.13 to 0.15
    looking at a full queue again after 1 ms, consume(10000)        0.41 to 0.53
    the same, consume(4000), (1000), (500), (200), (50)             0.56, 0.81 to 1.42, 1.13, 1.16, 1.05
    a queue for all records, consume(500)                           1.17 to 1.45

With the defaults a consumer whose queue is full (100,000 records) stops fetching for a second
(``fetch.queue.backoff.ms``). And a long list of messages is no longer in the processor's cache when it is let go.
"""

import time
from collections.abc import Iterator

from confluent_kafka import Consumer, Message, TopicPartition

AT_ONCE = 500
GIVE_UP_S = 300.0
SETTINGS = {
    "group.id": "bench",
    "enable.auto.commit": False,
    "fetch.queue.backoff.ms": 1,
    "queued.min.messages": 4_000_000,
    "queued.max.messages.kbytes": 1 << 20,
    "log_level": 4,
}


def consumed(servers: str, topic: str, partition: int, records: int) -> Iterator[list[Message]]:
    """Lists of at most ``AT_ONCE`` records, until there were so many; RuntimeError when they do not come."""
    consumer = Consumer({"bootstrap.servers": servers, **SETTINGS})
    give_up = time.monotonic() + GIVE_UP_S
    try:
        consumer.assign([TopicPartition(topic, partition, 0)])
        while records > 0:
            messages = consumer.consume(min(AT_ONCE, records), timeout=1)
            if messages:
                yield messages
            records -= len(messages)
            if time.monotonic() > give_up:
                raise RuntimeError(f"{records} records did not come within {GIVE_UP_S:.0f} s")
    finally:
        consumer.close()
