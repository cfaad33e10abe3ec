"""Row share-consume: what it costs that every record is acquired and accepted, to one client that reads a topic.

The same records, of the same client library, in batches of 500. A poll of the share consumer returns one batch, 500
records, and accepts those of the poll before: each is one ShareFetch, and one write of the share state. librdkafka does
not fetch ahead for a share group. The reference is ``consume(500)`` of a plain consumer, which fetches ahead as far as
it can and commits nothing (``confluent_reading.py``). Its second reference, in the details, has a queue of 500 records
too, so it has to wait for the broker as the share consumer does.

The bar is all but out of reach with this client. Its own work, and the ways between its threads and the broker, take
so long that a stand-in which repeats its response at no cost reaches some 0.55 of the plain consumer's rate
(``experiments/share_client.py``, docs/decisions/0018-share-window.md). The row shows what is left of that.

The clock begins with the first records: joining a group is not part of it.
"""

import time
from collections.abc import Callable, Iterator

from confluent_kafka import Consumer, ShareConsumer, TopicPartition

from bench import confluent_reading
from bench.peers import apart, cpu_seconds
from bench.row import Row, spread, take_turns
from bench.share_topics import AT_ONCE, GIVE_UP_S, Rate, check_all_done, fill, new_group, polled
from skep.testing import EmbeddedBroker

NAMES = ("share-consume",)

RECORDS = 300_000
ROUNDS = 5
TOPIC = "shared"
PLAIN, WAITING, SHARED = "plain", "plain, not ahead", "share group"


def measure() -> Iterator[Row]:
    with EmbeddedBroker() as broker:
        servers = broker.bootstrap_servers
        fill(servers, TOPIC, RECORDS)
        with apart(broker.pid):
            turns: dict[str, Callable[[], Rate]] = {
                PLAIN: lambda: _plain(servers, broker.pid),
                WAITING: lambda: _waiting(servers, broker.pid),
                SHARED: lambda: _shared(servers, broker.pid),
            }
            _shared(servers, broker.pid)  # the broker imports what the first request needs
            results = take_turns(turns, str, ROUNDS)
    ours, reference = max(results[SHARED]), max(results[PLAIN])
    ratios = sorted(one.rate / other.rate for one, other in zip(results[SHARED], results[PLAIN], strict=True))
    yield Row(
        "share-consume",
        f"one member of a share group, {AT_ONCE} records a poll, all accepted, to consume({AT_ONCE}) of the same",
        0.5,
        "at least",
        ours.rate / reference.rate,
        str(ours),
        str(reference),
        median=ratios[len(ratios) // 2],
        details={
            "records_a_poll": RECORDS / ours.polls,
            "to_a_consumer_that_does_not_fetch_ahead": round(ours.rate / max(results[WAITING]).rate, 2),
            **{
                name: {
                    "rate": spread([run.rate for run in runs]),
                    "broker_cpu_us": spread([run.broker_cpu_us for run in runs], 2),
                }
                for name, runs in results.items()
            },
        },
    )


def _plain(servers: str, pid: int) -> Rate:
    return _timed(map(len, confluent_reading.consumed(servers, TOPIC, 0, RECORDS)), pid)


def _waiting(servers: str, pid: int) -> Rate:
    """A consumer that has no more in its queue than one poll takes."""
    settings = {
        **confluent_reading.SETTINGS,
        "queued.min.messages": 1,
        "fetch.message.max.bytes": AT_ONCE * 120,
        "fetch.max.bytes": AT_ONCE * 240,
        "message.max.bytes": AT_ONCE * 240,
    }
    consumer = Consumer({"bootstrap.servers": servers, **settings})

    def lists() -> Iterator[int]:
        left, give_up = RECORDS, time.monotonic() + GIVE_UP_S
        while left > 0:
            count = len(consumer.consume(min(AT_ONCE, left), timeout=0.002))
            left -= count
            if count:
                yield count
            if time.monotonic() > give_up:
                raise RuntimeError(f"{left} records did not come within {GIVE_UP_S:.0f} s")

    try:
        consumer.assign([TopicPartition(TOPIC, 0, 0)])
        return _timed(lists(), pid)
    finally:
        consumer.close()


def _shared(servers: str, pid: int) -> Rate:
    group = new_group(servers)
    consumer = ShareConsumer(
        {"bootstrap.servers": servers, "group.id": group, "max.poll.records": AT_ONCE, "log_level": 4}
    )
    try:
        consumer.subscribe([TOPIC])
        rate = _timed(map(len, polled(consumer, RECORDS)), pid, lambda: _committed(consumer))
    finally:
        consumer.close()
    check_all_done(servers, group)
    return rate


def _committed(consumer: ShareConsumer) -> None:
    """Accepts the records of the last poll."""
    if failed := [error for error in consumer.commit_sync(60).values() if error is not None]:
        raise RuntimeError(f"the last commit failed: {failed[0]}")


def _timed(counts: Iterator[int], pid: int, finish: Callable[[], None] = lambda: None) -> Rate:
    """The rate of what follows the first records."""
    first = next(counts)
    cpu, started = cpu_seconds(pid), time.perf_counter()
    count, polls = 0, 1
    for one in counts:
        count += one
        polls += 1
    finish()
    seconds = time.perf_counter() - started
    if first + count != RECORDS:
        raise RuntimeError(f"{first + count} records came instead of {RECORDS}")
    return Rate(count / seconds, (cpu_seconds(pid) - cpu) / count * 1e6, polls)
