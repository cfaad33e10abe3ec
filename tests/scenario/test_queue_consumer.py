"""A function as a worker: what it returns and raises, how many run at a time, and what holds a record for too long."""

import asyncio
import logging
import threading
import time
from collections import Counter
from collections.abc import Iterator

import pytest
from confluent_kafka import Producer

import skep
from skep.client.cluster_client import ClusterClient
from skep.client.commands import command_to_leader
from skep.client.errors import ClientError
from skep.testing import EmbeddedBroker
from tests.scenario.dead_letter_scene import Queue
from tests.scenario.queue_topics import LOCK_S, OPTIONS, PATIENCE_S, configure, create, jobs, text, write
from tests.waiting import wait_until

pytestmark = pytest.mark.xdist_group(__name__)


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(options=OPTIONS) as broker:
        yield broker


@pytest.fixture
def servers(broker: EmbeddedBroker) -> str:
    return broker.bootstrap_servers


@pytest.fixture
def queue(servers: str, topic: str) -> str:
    """A topic, and a group with its name that reads it from its start."""
    create(servers, topic)
    configure(servers, topic, "share.auto.offset.reset", "earliest")
    return topic


def test_a_record_is_accepted_when_the_handler_returns(servers: str, queue: str) -> None:
    write(servers, queue, jobs(30))
    seen: list[skep.Message] = []
    with skep.consume(queue, seen.append, group=queue, bootstrap_servers=servers) as consumer:
        wait_until(lambda: consumer.statistics.accepted == 30, lambda: str(consumer.statistics))
    assert [text(message) for message in seen] == jobs(30)
    assert [message.offset for message in seen] == list(range(30))
    assert {(message.topic, message.partition, message.delivery_count) for message in seen} == {(queue, 0, 1)}
    again: list[skep.Message] = []
    write(servers, queue, ["last"])
    with skep.consume(queue, again.append, group=queue, bootstrap_servers=servers):
        wait_until(lambda: again, "the last one comes")
    assert list(map(text, again)) == ["last"]


def test_raising_means_again_and_reject_means_never(servers: str, queue: str, caplog: pytest.LogCaptureFixture) -> None:
    write(servers, queue, jobs(4))
    seen: Counter[str] = Counter()

    def handle(message: skep.Message) -> None:
        seen[text(message)] += 1
        assert seen[text(message)] == message.delivery_count
        if text(message) == "job 1":
            raise skep.Reject("not a job")
        if text(message) == "job 2" and message.delivery_count < 3:
            raise ValueError("not yet")

    with caplog.at_level(logging.INFO, "skep.queue"):
        with skep.consume(queue, handle, group=queue, bootstrap_servers=servers) as consumer:
            wait_until(lambda: consumer.statistics.accepted == 3, lambda: str(consumer.statistics))
    done = consumer.statistics
    assert seen == {"job 0": 1, "job 1": 1, "job 2": 3, "job 3": 1}
    assert (done.taken, done.accepted, done.retried, done.rejected, done.refused) == (6, 3, 2, 1, 0)
    assert "ValueError: not yet" in caplog.text
    assert "not a job" in caplog.text


def test_no_more_is_taken_than_the_handlers_can_take(servers: str, queue: str) -> None:
    write(servers, queue, jobs(200))  # in one batch: without the exact number a member would be given all of them
    go = threading.Semaphore(0)
    held = 0
    lock = threading.Lock()

    def handle(message: skep.Message) -> None:
        nonlocal held
        with lock:
            held += 1
        assert go.acquire(timeout=PATIENCE_S)

    options = {"group": queue, "bootstrap_servers": servers, "timeout": 3 * PATIENCE_S}
    with skep.consume(queue, handle, concurrency=3, prefetch=5, **options) as consumer:
        wait_until(lambda: consumer.statistics.taken == 5, lambda: str(consumer.statistics))
        wait_until(lambda: held == 3, "three handlers are called")
        other: list[skep.Message] = []
        with skep.consume(queue, other.append, **options):
            wait_until(lambda: len(other) >= 100, "another member is not kept waiting")
            assert consumer.statistics.taken == 5
            go.release(200)
            wait_until(
                lambda: len(other) + consumer.statistics.accepted >= 200, lambda: f"{consumer.statistics} {len(other)}"
            )
    assert consumer.statistics.most_running == 3
    assert consumer.statistics.late == 0


def test_a_slow_record_holds_up_no_other_handler(servers: str, queue: str) -> None:
    write(servers, queue, jobs(50))
    go = threading.Event()
    done: list[str] = []

    def handle(message: skep.Message) -> None:
        if text(message) == "job 0":
            assert go.wait(PATIENCE_S)
        done.append(text(message))

    options = {"group": queue, "bootstrap_servers": servers, "timeout": 3 * PATIENCE_S}
    with skep.consume(queue, handle, concurrency=2, **options) as consumer:
        wait_until(lambda: len(done) == 49, lambda: str(consumer.statistics))
        wait_until(lambda: consumer.statistics.running == 1, "only the slow one runs")
        go.set()
        wait_until(lambda: consumer.statistics.accepted == 50, lambda: str(consumer.statistics))


def test_async_handlers_run_at_the_same_time(servers: str, queue: str) -> None:
    write(servers, queue, jobs(20))
    waiting = asyncio.Queue[None]()
    failed = False

    async def handle(message: skep.Message) -> None:
        nonlocal failed
        if text(message) == "job 7" and not failed:
            failed = True
            raise ValueError("once")
        # Nobody ends before five are there.
        await waiting.put(None)
        while waiting.qsize() < 5:
            await asyncio.sleep(0.001)

    with skep.consume(queue, handle, group=queue, bootstrap_servers=servers, concurrency=10) as consumer:
        wait_until(lambda: consumer.statistics.accepted == 20, lambda: str(consumer.statistics))
    assert consumer.statistics.retried == 1
    assert 5 <= consumer.statistics.most_running <= 10


def test_a_handler_that_hangs_loses_its_record_to_another_member(
    servers: str, queue: str, caplog: pytest.LogCaptureFixture
) -> None:
    write(servers, queue, jobs(3))
    go = threading.Event()

    def hang(message: skep.Message) -> None:
        assert go.wait(2 * PATIENCE_S)

    # Its locks last 30 s, and it renews them. It loses its records because its handler may not take so long.
    with skep.consume(queue, hang, group=queue, bootstrap_servers=servers, prefetch=3, timeout=1) as hanging:
        wait_until(lambda: hanging.statistics.taken == 3, lambda: str(hanging.statistics))
        seen: dict[str, int] = {}

        def handle(message: skep.Message) -> None:
            seen[text(message)] = message.delivery_count

        with skep.consume(queue, handle, group=queue, bootstrap_servers=servers) as other:
            wait_until(lambda: len(seen) == 3, lambda: f"{seen} {hanging.statistics} {other.statistics}")
            go.set()
            wait_until(lambda: hanging.statistics.late, lambda: str(hanging.statistics))
        assert hanging.statistics.returned == 2, "what no handler had begun was given back"
        assert hanging.statistics.taken == 3, "it takes nothing while all of its handlers hang"
    assert "its result (accept) does not count" in caplog.text


def test_where_locks_cannot_be_renewed_a_record_is_given_up_before_its_lock_expires(servers: str, queue: str) -> None:
    configure(servers, queue, "share.record.lock.duration.ms", f"{LOCK_S * 1000:.0f}")
    configure(servers, queue, "share.renew.acknowledge.enable", "false")
    write(servers, queue, jobs(3))
    go = threading.Event()

    def hang(message: skep.Message) -> None:
        assert go.wait(2 * PATIENCE_S)

    seen: set[str] = set()
    options = {"group": queue, "bootstrap_servers": servers, "timeout": 3 * PATIENCE_S}
    with skep.consume(queue, hang, prefetch=3, **options) as hanging:
        wait_until(lambda: hanging.statistics.stuck, lambda: str(hanging.statistics))
        with skep.consume(queue, lambda message: seen.add(text(message)), **options):
            wait_until(lambda: len(seen) == 3, lambda: f"{seen} {hanging.statistics}")
        go.set()
    assert hanging.statistics.accepted == 0
    assert hanging.statistics.returned == 2


def test_a_handler_may_take_longer_than_a_lock_if_it_is_told_so(servers: str, queue: str) -> None:
    configure(servers, queue, "share.record.lock.duration.ms", f"{LOCK_S * 1000:.0f}")
    write(servers, queue, jobs(3))
    seen: Counter[str] = Counter()

    def handle(message: skep.Message) -> None:
        seen[text(message)] += 1
        if seen.total() <= 2:
            time.sleep(1.2 * LOCK_S)

    options = {"group": queue, "bootstrap_servers": servers, "timeout": 60}
    # The third one waits for its turn here, which is longer than a lock too.
    with skep.consume(queue, handle, concurrency=2, prefetch=3, **options) as consumer:
        wait_until(lambda: consumer.statistics.taken == 3, lambda: str(consumer.statistics))
        with skep.consume(queue, handle, **options) as other:
            wait_until(
                lambda: consumer.statistics.accepted + other.statistics.accepted == 3,
                lambda: f"{consumer.statistics} {other.statistics}",
            )
    assert seen == dict.fromkeys(jobs(3), 1)
    assert consumer.statistics.refused == other.statistics.refused == 0


def test_retry_later_waits_and_the_reason_is_shown(servers: str, queue: str) -> None:
    write(servers, queue, jobs(2))
    again = threading.Event()

    def handle(message: skep.Message) -> None:
        if text(message) == "job 0" and message.delivery_count == 1:
            raise skep.RetryLater(3600, "the bank is closed")
        if text(message) == "job 1" and message.delivery_count == 1:
            raise skep.RetryLater(0.2)
        if message.delivery_count > 1:
            again.set()

    with (
        skep.consume(queue, handle, group=queue, bootstrap_servers=servers) as consumer,
        ClusterClient(servers) as cluster,
    ):
        assert again.wait(PATIENCE_S)
        wait_until(lambda: consumer.statistics.accepted == 1, lambda: str(consumer.statistics))
        [waiting] = command_to_leader(cluster, queue, 0, "deliveries", {"group": queue})["runs"]
        assert (waiting["first"], waiting["state"]) == (0, "waiting")
        assert waiting["not_before_ms"] > time.time() * 1000 + 3_000_000
        # The handler may not have been called for it again: the time is that of the record, and not of the member.
        command_to_leader(cluster, queue, 0, "delay", {"group": queue, "offset": 0, "delay_ms": 0})
        wait_until(lambda: consumer.statistics.accepted == 2, lambda: str(consumer.statistics))
    assert consumer.statistics.retried == 2


def test_the_dead_letter_says_why(servers: str, topic: str) -> None:
    queue = Queue(servers, topic)  # its records are delivered twice at the most
    queue.create_dlq()
    queue.write(b"reject", b"raise", b"accept")

    def handle(message: skep.Message) -> None:
        if message.value == b"reject":
            raise skep.Reject("not a job")
        if message.value == b"raise":
            raise ValueError(f"failure {message.delivery_count}")

    with skep.consume(topic, handle, group=topic, bootstrap_servers=servers):
        letters = queue.wait_for_letters(2)
    assert {letter.offset: letter.reason for letter in letters} == {0: "not a job", 1: "ValueError: failure 2"}


def test_what_ends_a_program_ends_the_consumer(servers: str, queue: str) -> None:
    write(servers, queue, jobs(2))

    def handle(message: skep.Message) -> None:
        raise KeyboardInterrupt

    consumer = skep.consume(queue, handle, group=queue, bootstrap_servers=servers)
    with pytest.raises(KeyboardInterrupt):
        consumer.wait()
    seen: list[str] = []
    with skep.consume(queue, lambda message: seen.append(text(message)), group=queue, bootstrap_servers=servers):
        wait_until(lambda: set(seen) == set(jobs(2)), "nothing is lost")
    assert consumer.stop() == consumer.statistics, "it has stopped"


def test_a_loop_that_is_closed_ends_the_consumer(servers: str, queue: str) -> None:
    write(servers, queue, jobs(1))
    loop = asyncio.new_event_loop()
    loop.close()

    async def handle(message: skep.Message) -> None: ...

    consumer = skep.consume(queue, handle, group=queue, bootstrap_servers=servers, loop=loop)
    with pytest.raises(RuntimeError, match="Event loop is closed"):
        consumer.wait()


def test_an_error_in_the_with_block_is_not_hidden(servers: str, queue: str) -> None:
    with pytest.raises(LookupError):
        with skep.consume(queue, print, group=queue, bootstrap_servers=servers):
            raise LookupError


def test_a_topic_that_does_not_exist_is_named(servers: str, queue: str) -> None:
    with pytest.raises(ClientError, match=f"there is no topic '{queue}x'; did you mean {queue}"):
        skep.consume(queue + "x", print, group=queue, bootstrap_servers=servers)


def test_a_group_of_another_kind_is_an_error_and_no_silence(servers: str, queue: str) -> None:
    from confluent_kafka import Consumer

    classic = Consumer({"bootstrap.servers": servers, "group.id": f"{queue}-c"})
    classic.subscribe([queue])
    wait_until(lambda: classic.poll(0.1) or classic.assignment(), "it is a member")
    consumer = skep.consume(queue, print, group=f"{queue}-c", bootstrap_servers=servers)
    with pytest.raises(Exception, match="GROUP_ID_NOT_FOUND"):
        consumer.wait()
    classic.close()


@pytest.mark.parametrize("members", ["exclusive", "failover"])
def test_one_active_member_has_all_handlers_of_its_consumer(servers: str, queue: str, members: str) -> None:
    configure(servers, queue, "skep.share.members", members)
    write(servers, queue, jobs(30))
    called: list[skep.Message] = []

    def handle(message: skep.Message) -> None:
        called.append(message)
        wait_until(lambda: len(called) > 1, "another handler is called meanwhile")

    with skep.consume(queue, handle, group=queue, bootstrap_servers=servers, concurrency=3) as consumer:
        wait_until(lambda: consumer.statistics.accepted == 30, lambda: str(consumer.statistics))
    assert consumer.statistics.most_running > 1


def test_many_handlers_keep_the_order_of_keys(servers: str, queue: str) -> None:
    configure(servers, queue, "skep.share.order", "key")
    producer = Producer({"bootstrap.servers": servers})
    for number in range(40):
        producer.produce(queue, b"%d" % number, b"key %d" % (number % 4))
    assert producer.flush(PATIENCE_S) == 0
    done: dict[bytes | None, list[int]] = {}
    lock = threading.Lock()

    def handle(message: skep.Message) -> None:
        number = int(text(message))
        if number % 10 == 3 and message.delivery_count == 1:
            raise skep.RetryLater(0.05)
        with lock:
            done.setdefault(message.key, []).append(number)

    with skep.consume(queue, handle, group=queue, bootstrap_servers=servers, concurrency=4) as consumer:
        wait_until(lambda: consumer.statistics.accepted == 40, lambda: str(consumer.statistics))
    assert done == {b"key %d" % key: list(range(key, 40, 4)) for key in range(4)}


def test_several_topics_are_one_queue(servers: str, queue: str, topic: str) -> None:
    create(servers, f"{topic}-2")
    write(servers, queue, ["a"])
    write(servers, f"{topic}-2", ["b"])
    seen: list[str] = []
    with skep.consume(
        [queue, f"{topic}-2"], lambda message: seen.append(text(message)), group=queue, bootstrap_servers=servers
    ):
        wait_until(lambda: sorted(seen) == ["a", "b"], lambda: str(seen))
