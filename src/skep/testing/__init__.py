"""Brokers for test suites: real, in processes of their own, gone when the test is over.

    from skep.testing import EmbeddedBroker, EmbeddedCluster

    with EmbeddedBroker() as broker:
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers})

    with EmbeddedCluster(brokers=3) as cluster:
        cluster.kill(cluster.leader_of("orders"))

No Docker and no JVM. With pytest the fixtures of ``skep.pytest_plugin`` do the same.
"""

from skep.testing.broker import EmbeddedBroker
from skep.testing.cluster import EmbeddedCluster

__all__ = ["EmbeddedBroker", "EmbeddedCluster"]
