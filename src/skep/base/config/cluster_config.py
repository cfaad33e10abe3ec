"""The section ``cluster`` of the broker options: metadata store, replication and leadership."""

from dataclasses import dataclass

from skep.base.config.option import OptionType, anything, at_least, option

MEBIBYTE = 1 << 20


@dataclass(frozen=True)
class ClusterConfig:
    metadata: str = option(
        "skep.metadata",
        "",
        anything,
        "The metadata store of the cluster: sqlite:FILE, shared by the brokers of one machine, or "
        "zk://HOST:PORT,HOST:PORT/CHROOT. Empty: a file in the data directory, for a single broker.",
        dynamic=False,
    )
    zookeeper_session_timeout_ms: int = option(
        "zookeeper.session.timeout.ms",
        6_000,
        at_least(100),
        "A broker that is silent for this long is considered dead. Applies to both kinds of metadata store.",
        dynamic=False,
    )
    zookeeper_connection_timeout_ms: int = option(
        "zookeeper.connection.timeout.ms",
        18_000,
        at_least(1),
        "How long a starting broker tries to reach ZooKeeper before it gives up.",
        dynamic=False,
    )
    zookeeper_auth: str = option(
        "skep.zookeeper.auth",
        "",
        anything,
        "The ZooKeeper login: SCHEME:CREDENTIAL, for example digest:me:secret.",
        type=OptionType.PASSWORD,
        dynamic=False,
    )
    zookeeper_ssl: bool = option(
        "skep.zookeeper.ssl", False, anything, "Whether to connect to ZooKeeper over TLS.", dynamic=False
    )
    zookeeper_ca: str = option(
        "skep.zookeeper.ca",
        "",
        anything,
        "File with the CA certificates that verify ZooKeeper's certificate.",
        dynamic=False,
    )
    zookeeper_certfile: str = option(
        "skep.zookeeper.certfile",
        "",
        anything,
        "File with the broker's client certificate for ZooKeeper.",
        dynamic=False,
    )
    zookeeper_keyfile: str = option(
        "skep.zookeeper.keyfile", "", anything, "File with the private key of the client certificate.", dynamic=False
    )
    zookeeper_keyfile_password: str = option(
        "skep.zookeeper.keyfile.password",
        "",
        anything,
        "The password of the private key, if it has one.",
        type=OptionType.PASSWORD,
        dynamic=False,
    )
    zookeeper_verify: bool = option(
        "skep.zookeeper.verify", True, anything, "Whether ZooKeeper's certificate is verified.", dynamic=False
    )
    controlled_shutdown_enable: bool = option(
        "controlled.shutdown.enable",
        True,
        anything,
        "Whether a broker that stops first moves its leaderships to other brokers.",
        dynamic=False,
    )
    replica_lag_time_max_ms: int = option(
        "replica.lag.time.max.ms",
        30_000,
        at_least(1),
        "A follower that has not caught up with its leader for this long leaves the in-sync replicas.",
        type=OptionType.LONG,
    )
    replica_fetch_wait_max_ms: int = option(
        "replica.fetch.wait.max.ms",
        500,
        at_least(0),
        "How long a leader delays a follower's fetch if there are no new records. Set it below "
        "replica.lag.time.max.ms.",
        dynamic=False,
    )
    replica_fetch_min_bytes: int = option(
        "replica.fetch.min.bytes", 1, at_least(1), "The fewest bytes that a follower's fetch waits for.", dynamic=False
    )
    replica_fetch_max_bytes: int = option(
        "replica.fetch.max.bytes",
        MEBIBYTE,
        at_least(1024),
        "The most bytes of one partition in a follower's fetch. A larger batch is returned whole.",
        dynamic=False,
    )
    replica_fetch_response_max_bytes: int = option(
        "replica.fetch.response.max.bytes",
        10 * MEBIBYTE,
        at_least(1024),
        "The most bytes of all partitions together in a follower's fetch.",
        dynamic=False,
    )
    replica_fetch_backoff_ms: int = option(
        "replica.fetch.backoff.ms",
        1_000,
        at_least(1),
        "How long a follower waits after a failed fetch, for the partition or for the leader.",
        dynamic=False,
    )
    replica_socket_timeout_ms: int = option(
        "replica.socket.timeout.ms",
        30_000,
        at_least(1),
        "A follower reconnects to a leader that has not responded to its fetch for this long.",
        dynamic=False,
    )
    replica_selector_class: str = option(
        "replica.selector.class",
        "",
        anything,
        "With a class name ending in RackAwareReplicaSelector, consumers that set client.rack read from a replica "
        "in their rack (KIP-392). Empty: consumers read from the leader.",
        dynamic=False,
    )
    num_replica_fetchers: int = option(
        "num.replica.fetchers", 1, at_least(1), "The number of connections to each leader for replication."
    )
    replica_high_watermark_checkpoint_interval_ms: int = option(
        "replica.high.watermark.checkpoint.interval.ms",
        5_000,
        at_least(1),
        "How often the high watermarks are checkpointed for the next start.",
        type=OptionType.LONG,
        dynamic=False,
    )
    leader_replication_throttled_rate: int = option(
        "leader.replication.throttled.rate",
        (1 << 63) - 1,
        at_least(0),
        "The most bytes per second that a leader sends to replicas that reassignments add, and to those that a topic's "
        "leader.replication.throttled.replicas selects.",
        type=OptionType.LONG,
    )
    follower_replication_throttled_rate: int = option(
        "follower.replication.throttled.rate",
        (1 << 63) - 1,
        at_least(0),
        "The most bytes per second that a broker fetches for replicas that reassignments add to it, and for those that "
        "a topic's follower.replication.throttled.replicas selects.",
        type=OptionType.LONG,
    )
    auto_leader_rebalance_enable: bool = option(
        "auto.leader.rebalance.enable",
        True,
        anything,
        "Whether the controller moves leadership back to the preferred leader, the first replica of a partition.",
    )
    leader_imbalance_check_interval_seconds: int = option(
        "leader.imbalance.check.interval.seconds",
        300,
        at_least(1),
        "How often the controller checks for leader imbalance.",
    )
    leader_imbalance_per_broker_percentage: int = option(
        "leader.imbalance.per.broker.percentage",
        10,
        at_least(0),
        "The controller rebalances a broker that does not lead more than this percentage of its preferred partitions.",
    )
