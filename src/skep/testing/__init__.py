"""Real brokers for test suites, each in its own process, stopped and removed at the end of the test.

    from skep.testing import EmbeddedBroker, EmbeddedCluster

    with EmbeddedBroker() as broker:
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers})

    with EmbeddedCluster(brokers=3) as cluster:
        cluster.kill(cluster.leader_of("orders"))

No Docker and no JVM is needed. For pytest, ``skep.pytest_plugin`` has fixtures that do the same.
"""

from skep.testing.broker import EmbeddedBroker
from skep.testing.cluster import EmbeddedCluster

__all__ = ["EmbeddedBroker", "EmbeddedCluster"]
