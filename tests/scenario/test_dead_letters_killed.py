"""kill -9 of the worker and of the broker while records die: each of them is in the dead-letter topic once."""

import random
import threading
from collections import Counter
from collections.abc import Callable

import pytest
from confluent_kafka import TopicPartition as ClientPartition

from skep.testing import EmbeddedBroker
from tests.lengths import times
from tests.scenario.dead_letter_scene import OPTIONS, REJECT, RELEASE, SOON_AGAIN, Queue, kill_workers
from tests.waiting import PATIENCE_S, wait_until

pytestmark = [pytest.mark.xdist_group(__name__), pytest.mark.long]

KILLS = times(2, long=100)
AT_A_TIME = 40


class Rejecting:
    """A member that rejects everything, in a thread, until it is told to stop."""

    def __init__(self, queue: Queue) -> None:
        self._stop = threading.Event()
        self._failures: list[BaseException] = []
        self._thread = threading.Thread(target=self._run, args=(queue,))

    def _run(self, queue: Queue) -> None:
        try:
            queue.work(lambda message: REJECT, self._stop.is_set, timeout_s=600, **SOON_AGAIN)
        except BaseException as error:
            self._failures.append(error)
            raise

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(2 * PATIENCE_S)
        assert not self._thread.is_alive()
        assert self._failures == []


def letters_of(queue: Queue, count: int, meanwhile: Callable[[], object] = lambda: None) -> None:
    """Waits for all letters, and fails if one is there twice."""

    def found() -> bool:
        meanwhile()
        counts = Counter(queue.offsets())
        twice = [offset for offset, number in counts.items() if number > 1]
        assert not twice, f"{twice} have more than one letter"
        return len(counts) == count

    wait_until(found, lambda: f"{count} letters, only {len(set(queue.offsets()))}", timeout_s=120)


def write_and_kill(queue: Queue, kill: Callable[[float], None], seed: int) -> None:
    chosen = random.Random(seed)
    with Rejecting(queue):
        for number in range(KILLS):
            for _ in range(4):
                queue.write(*[b"%d" % number] * (AT_A_TIME // 4))
            # At some moment of the copy: the first letters come about 0.05 s later, the last some 0.3 s.
            kill(chosen.uniform(0, 0.4))
            # A worker that is killed again and again before it has done anything is started ever later.
            letters_of(queue, (number + 1) * AT_A_TIME)
    assert queue.offsets() == [(0, offset) for offset in range(KILLS * AT_A_TIME)]


def test_each_dead_record_has_one_letter_although_workers_die(topic: str) -> None:
    with EmbeddedBroker(options=OPTIONS) as broker:
        queue = Queue(broker.bootstrap_servers, topic)
        queue.create_dlq()

        def kill(after_s: float) -> None:
            threading.Event().wait(after_s)
            wait_until(lambda: kill_workers(broker.pid), "a worker is there to be killed")

        write_and_kill(queue, kill, seed=1)
        assert "Traceback" not in broker.log


def release_all(queue: Queue) -> None:
    seen: set[int | None] = set()
    queue.work(lambda message: seen.add(message.offset()) or RELEASE, lambda: len(seen) == AT_A_TIME)


def test_each_record_that_is_deleted_while_it_waits_has_one_letter_although_brokers_die(topic: str) -> None:
    with EmbeddedBroker(options=OPTIONS) as broker:
        queue = Queue(broker.bootstrap_servers, topic)
        queue.create_dlq()
        queue.configure(**{"skep.share.retry.backoff": "1h"})
        chosen = random.Random(3)
        for number in range(1, KILLS + 1):
            queue.write(*[b"later"] * AT_A_TIME)
            release_all(queue)
            with queue.member(**SOON_AGAIN) as member:
                deleted = queue.admin.delete_records([ClientPartition(topic, 0, number * AT_A_TIME)])
                next(iter(deleted.values())).result(PATIENCE_S)
                member.poll(chosen.uniform(0, 0.4))
                broker.kill()
                broker.restart()
                letters_of(queue, number * AT_A_TIME, meanwhile=lambda: member.poll(0.2))
        assert queue.offsets() == [(0, offset) for offset in range(KILLS * AT_A_TIME)]


def test_each_dead_record_has_one_letter_although_brokers_die(topic: str) -> None:
    with EmbeddedBroker(options=OPTIONS) as broker:
        queue = Queue(broker.bootstrap_servers, topic)
        queue.create_dlq()

        def kill(after_s: float) -> None:
            threading.Event().wait(after_s)
            broker.kill()
            broker.restart()

        write_and_kill(queue, kill, seed=2)
        assert "Traceback" not in broker.log
