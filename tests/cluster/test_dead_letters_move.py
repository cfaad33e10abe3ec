"""Dead letters in a cluster of three while leaders of the source and of the dead-letter topic and coordinators die."""

import random
import threading
from collections import Counter

import pytest

from skep.testing import EmbeddedCluster
from tests.cluster.driving import LONG_SESSIONS, wait_until_configured
from tests.lengths import times
from tests.scenario.dead_letter_scene import OPTIONS, REJECT, SOON_AGAIN, Queue
from tests.waiting import wait_until

pytestmark = [pytest.mark.xdist_group(__name__), pytest.mark.long]

KILLS = times(2, long=40)
AT_A_TIME = 60
CLUSTER = {
    **OPTIONS,
    **LONG_SESSIONS,
    "offsets.topic.num.partitions": "3",
    "transaction.state.log.num.partitions": "3",
    "share.coordinator.state.topic.num.partitions": "3",
    "group.initial.rebalance.delay.ms": "0",
}


def test_each_dead_record_has_one_letter_although_leaders_and_coordinators_die() -> None:
    with EmbeddedCluster(3, config=CLUSTER) as cluster:
        queue = Queue(cluster.bootstrap_servers, "orders", partitions=3, replicas=3)
        wait_until_configured(cluster, queue.group, "share.auto.offset.reset", "earliest")
        queue.create_dlq(partitions=3)
        stop = threading.Event()
        failures: list[BaseException] = []

        def reject() -> None:
            try:
                queue.work(lambda message: REJECT, stop.is_set, timeout_s=600, **SOON_AGAIN)
            except BaseException as error:
                failures.append(error)
                raise

        member = threading.Thread(target=reject)
        member.start()
        try:
            chosen = random.Random(3)
            for number in range(KILLS):
                for partition in range(3):
                    queue.write(*[b"x"] * (AT_A_TIME // 3), partition=partition)
                # At some moment of the copy: the first letters come about 0.05 s later, the last some 0.3 s.
                threading.Event().wait(chosen.uniform(0, 0.4))
                victim = number % 3 + 1
                cluster.kill(victim)
                cluster.restart(victim)
                cluster.wait_until_in_sync()
            expected = Counter((p, offset) for p in range(3) for offset in range(KILLS * AT_A_TIME // 3))

            def found() -> bool:
                counts = Counter(queue.offsets())
                assert max(counts.values(), default=0) <= 1, counts
                return counts == expected

            wait_until(found, lambda: f"a letter for each record, missing {expected - Counter(queue.offsets())}", 180)
        finally:
            stop.set()
            member.join(120)
        assert failures == []
