"""A real Spark query goes on with a driver that asks a leader that was succeeded and does not know it.

The same with the driver's protocol alone, in more ways: test_stale_leader.py.
"""

import json
from collections import Counter
from pathlib import Path
from uuid import uuid4

import pytest
from pyspark.sql import SparkSession

from pyspark_skep.write.decisions import TOPIC, partition_of
from pyspark_skep.write.epoch_commit import ensure_topic
from pyspark_skep.write.partition_access import PartitionAccess
from skep.client.cluster_client import ClusterClient
from skep.client.produce.transactions import init_producer_id
from skep.client.topic_info import find_leader
from skep.testing import EmbeddedCluster
from tests.cluster.fault_cluster import FaultCluster
from tests.cluster.links import both_ways
from tests.cluster.scenes import create
from tests.spark.driver_model import PARTITIONS, committed_rows
from tests.waiting import wait_until

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.timeout(600)]

PATIENCE_S = 120.0
ROWS_OF_AN_EPOCH = 11


def test_an_epoch_counts_once_though_a_driver_asks_a_leader_that_was_succeeded_and_does_not_know_it(
    spark: SparkSession, topic: str, tmp_path: Path
) -> None:
    options = {"replica.lag.time.max.ms": "60000", "zookeeper.session.timeout.ms": "6000"}
    # One coordinator for all transactions, so that they do not depend on the broker that is cut off.
    options["transaction.state.log.num.partitions"] = "1"
    checkpoint, files = tmp_path / "checkpoint", tmp_path / "files"
    files.mkdir()

    def run(brokers: list[int], epoch: int) -> None:
        """Copies all files that are new, as one micro-batch."""
        file = files / f"{epoch}.txt"
        if not file.exists():
            file.write_text("".join(f"{epoch}/{number}\n" for number in range(ROWS_OF_AN_EPOCH)))
        writer = spark.readStream.schema("value STRING").text(str(files)).writeStream.format("skep")
        servers = ",".join(cluster.brokers[i] for i in brokers)
        given = {"topic": topic, "kafka.bootstrap.servers": servers, "checkpointLocation": str(checkpoint)}
        query = writer.options(**given).trigger(availableNow=True).start()
        try:
            assert query.awaitTermination(PATIENCE_S), "the query ends"
        finally:
            query.stop()

    with FaultCluster(3, metadata="zookeeper", config=options) as cluster:
        create(cluster, topic, PARTITIONS)
        with ClusterClient(cluster.bootstrap_servers) as client:
            ensure_topic(PartitionAccess(client))
            init_producer_id(client, "any")  # makes the topic of transactions
        cluster.wait_until_in_sync()
        # The id of a query is in its checkpoint: here it is one whose decisions are not led where transactions are.
        coordinator = cluster.leader_of("__transaction_state")
        ids = (str(uuid4()) for _ in range(1000))
        query_id = next(one for one in ids if cluster.leader_of(TOPIC, partition_of(one)) != coordinator)
        checkpoint.mkdir()
        (checkpoint / "metadata").write_text(json.dumps({"id": query_id}))
        deposed = cluster.leader_of(TOPIC, partition_of(query_id))
        others = [i for i in cluster.brokers if i != deposed]
        run(list(cluster.brokers), epoch=0)
        cluster.links.cut(both_ways(deposed, "zk"))
        wait_until(lambda: leader_by(cluster, others[0], query_id) not in (deposed, -1), "another leads", PATIENCE_S)
        run(others, epoch=1)
        # As if Spark had died between the sink's commit and its own.
        for file in (checkpoint / "commits").glob("*1*"):
            file.unlink()
        run([deposed, *others], epoch=1)
        cluster.links.heal()
        rows = [f"{epoch}/{number}" for epoch in (0, 1) for number in range(ROWS_OF_AN_EPOCH)]
        assert committed_rows(cluster.bootstrap_servers, topic) == Counter(rows)


def leader_by(cluster: EmbeddedCluster, broker: int, query: str) -> int:
    """Who leads the decisions of a query, by the word of one broker."""
    with ClusterClient(cluster.brokers[broker]) as client:
        leader = find_leader(client, TOPIC, partition_of(query)).leader
    return -1 if leader is None else leader.node_id
