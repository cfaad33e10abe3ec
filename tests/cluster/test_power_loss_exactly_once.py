"""Power lost by the whole cluster in the middle of an exactly-once write: what was decided is there, and once."""

import contextlib

from confluent_kafka import TopicPartition

from pyspark_skep.write.decisions import Decision
from tests.cluster.coordinators import OPTIONS, assert_no_bug_was_logged
from tests.cluster.fault_cluster import FaultCluster
from tests.cluster.scenes import create
from tests.cluster.test_power_loss import ALL_STAY_IN_SYNC, commit, committed
from tests.cluster.transactors import LEDGER, Transactor
from tests.spark.driver_model import KEEPS_ALL, PARTITIONS, Queries, decide, rows_of

TOPIC = "orders"
LAST = 3
"""The epoch that is decided when the power goes."""


def has_all(i: int, partition: str) -> bool:
    """Of each partition one broker had written everything to its disk; the others lose what they have not synced."""
    return i == 1 + int(partition.rpartition("-")[2]) % 3


def test_what_was_decided_is_there_once_when_all_lose_power_before_the_markers() -> None:
    with FaultCluster(3, config={**OPTIONS, **KEEPS_ALL, **ALL_STAY_IN_SYNC}) as cluster:
        create(cluster, TOPIC, partitions=PARTITIONS)
        create(cluster, LEDGER, partitions=PARTITIONS)
        queries = Queries(cluster.bootstrap_servers, TOPIC)
        query = queries.query()
        for epoch in range(1, LAST):
            queries.epoch(query, epoch, 2)
        place = TopicPartition(LEDGER, 0, 3)
        assert commit(cluster, place) == 3
        with contextlib.closing(Transactor(cluster.bootstrap_servers, "ledger")) as transactor:
            transactor.go_on(5)
            with queries.start(query) as run:
                tasks = run.tasks(rows_of(query, LAST), 2)
                cluster.wait_until_in_sync()
                decide(run, query, Decision(LAST, tuple(tasks)))
                assert cluster.lose_power([3, 2, 1], has_all) > 0
            # The last one back has lost most of what the first one, the last to die, still has.
            for i in (1, 2, 3):
                cluster.restart(i)
            cluster.wait_until_in_sync()
            # The checkpoint gives the next driver the same epoch, in other tasks.
            queries.epoch(query, LAST, 3)
            queries.epoch(query, LAST + 1, 1)
            queries.expect(query, *range(1, LAST + 2))
            queries.check()
            assert committed(cluster, place) == 3
            transactor.go_on(3)
            transactor.check_all_or_nothing()
        assert_no_bug_was_logged(cluster)
