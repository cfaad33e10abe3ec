"""The options of a broker as a member of a cluster, under Kafka's names; a part of ``BrokerConfig``."""

from dataclasses import dataclass

from skep.base.config.coordinator_config import CoordinatorConfig
from skep.base.config.option import OptionType, anything, at_least, option

MEBIBYTE = 1 << 20


@dataclass(frozen=True)
class ClusterConfig(CoordinatorConfig):
    metadata: str = option(
        "skep.metadata",
        "",
        anything,
        "Where the metadata of the cluster lies: sqlite:FILE, which the brokers of one machine share, or "
        "zk://HOST:PORT,HOST:PORT/CHROOT; empty: a file of its own in the data directory, for one broker alone.",
        dynamic=False,
    )
    zookeeper_session_timeout_ms: int = option(
        "zookeeper.session.timeout.ms",
        6_000,
        at_least(100),
        "A broker that the metadata store, of either kind, has not heard of for so long is taken for dead.",
        dynamic=False,
    )
    zookeeper_connection_timeout_ms: int = option(
        "zookeeper.connection.timeout.ms",
        18_000,
        at_least(1),
        "How long a broker that starts tries to reach ZooKeeper before it gives up.",
        dynamic=False,
    )
    zookeeper_auth: str = option(
        "skep.zookeeper.auth",
        "",
        anything,
        "How to log in to ZooKeeper: SCHEME:CREDENTIAL, e.g. digest:me:secret.",
        type=OptionType.PASSWORD,
        dynamic=False,
    )
    zookeeper_ssl: bool = option(
        "skep.zookeeper.ssl", False, anything, "Whether ZooKeeper is spoken to over TLS.", dynamic=False
    )
    zookeeper_ca: str = option(
        "skep.zookeeper.ca",
        "",
        anything,
        "File with the certificates that ZooKeeper's is checked against.",
        dynamic=False,
    )
    zookeeper_certfile: str = option(
        "skep.zookeeper.certfile", "", anything, "File with the broker's own certificate for ZooKeeper.", dynamic=False
    )
    zookeeper_keyfile: str = option(
        "skep.zookeeper.keyfile", "", anything, "File with the key of that certificate.", dynamic=False
    )
    zookeeper_keyfile_password: str = option(
        "skep.zookeeper.keyfile.password",
        "",
        anything,
        "The password of that key, if it has one.",
        type=OptionType.PASSWORD,
        dynamic=False,
    )
    zookeeper_verify: bool = option(
        "skep.zookeeper.verify", True, anything, "Whether ZooKeeper's certificate is checked.", dynamic=False
    )
    controlled_shutdown_enable: bool = option(
        "controlled.shutdown.enable",
        True,
        anything,
        "Whether a broker that stops hands its leaderships over first.",
        dynamic=False,
    )
    replica_lag_time_max_ms: int = option(
        "replica.lag.time.max.ms",
        30_000,
        at_least(1),
        "A follower that has not caught up with its leader for so long leaves the in-sync replicas.",
        type=OptionType.LONG,
    )
    replica_fetch_wait_max_ms: int = option(
        "replica.fetch.wait.max.ms",
        500,
        at_least(0),
        "How long a leader holds the fetch of a follower when there is nothing new; less than replica.lag.time.max.ms.",
        dynamic=False,
    )
    replica_fetch_min_bytes: int = option(
        "replica.fetch.min.bytes", 1, at_least(1), "What a follower's fetch waits for at the least.", dynamic=False
    )
    replica_fetch_max_bytes: int = option(
        "replica.fetch.max.bytes",
        MEBIBYTE,
        at_least(1024),
        "What a follower's fetch brings of one partition at the most; a batch that is larger comes whole.",
        dynamic=False,
    )
    replica_fetch_response_max_bytes: int = option(
        "replica.fetch.response.max.bytes",
        10 * MEBIBYTE,
        at_least(1024),
        "What a follower's fetch brings of all partitions together.",
        dynamic=False,
    )
    replica_fetch_backoff_ms: int = option(
        "replica.fetch.backoff.ms",
        1_000,
        at_least(1),
        "How long a partition, or a leader, whose fetch failed is left alone.",
        dynamic=False,
    )
    replica_socket_timeout_ms: int = option(
        "replica.socket.timeout.ms",
        30_000,
        at_least(1),
        "A leader that has not answered a follower's fetch for so long is connected to anew.",
        dynamic=False,
    )
    replica_selector_class: str = option(
        "replica.selector.class",
        "",
        anything,
        "Kafka's class name ending in RackAwareReplicaSelector: consumers that name their rack (client.rack) read from "
        "a replica there (KIP-392); empty: from the leader.",
        dynamic=False,
    )
    num_replica_fetchers: int = option(
        "num.replica.fetchers", 1, at_least(1), "Connections to each leader over which its partitions are copied."
    )
    replica_high_watermark_checkpoint_interval_ms: int = option(
        "replica.high.watermark.checkpoint.interval.ms",
        5_000,
        at_least(1),
        "How often the high watermarks are written down, for the next start.",
        type=OptionType.LONG,
        dynamic=False,
    )
    leader_replication_throttled_rate: int = option(
        "leader.replication.throttled.rate",
        (1 << 63) - 1,
        at_least(0),
        "How many bytes a second a leader gives to the replicas that reassignments add, and to those that "
        "leader.replication.throttled.replicas of a topic means, at the most.",
        type=OptionType.LONG,
    )
    follower_replication_throttled_rate: int = option(
        "follower.replication.throttled.rate",
        (1 << 63) - 1,
        at_least(0),
        "How many bytes a second a broker fetches for the replicas that reassignments add to it, and for those that "
        "follower.replication.throttled.replicas of a topic names, at the most.",
        type=OptionType.LONG,
    )
    auto_leader_rebalance_enable: bool = option(
        "auto.leader.rebalance.enable",
        True,
        anything,
        "Whether the controller gives leadership back to the first replica of a partition.",
    )
    leader_imbalance_check_interval_seconds: int = option(
        "leader.imbalance.check.interval.seconds", 300, at_least(1), "How often it looks whether it should."
    )
    leader_imbalance_per_broker_percentage: int = option(
        "leader.imbalance.per.broker.percentage",
        10,
        at_least(0),
        "It does so for a broker that lacks more than this part of what it should lead.",
    )
