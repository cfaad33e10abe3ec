"""The options of a broker. They have Kafka's names if Kafka has the option, and begin with ``skep.`` otherwise.

``cluster_config.py``, ``coordinator_config.py``, ``security_config.py`` and ``share_config.py`` hold sections of them.
The defaults of topics (``log.segment.bytes`` and others) are broker options too. They are declared once, in
``topic_config.py``, and reach a topic through ``BrokerConfig.topic_defaults``.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from skep.base.config.cluster_config import ClusterConfig
from skep.base.config.coordinator_config import CoordinatorConfig
from skep.base.config.option import (
    SECTION,
    Option,
    OptionType,
    anything,
    at_least,
    between,
    declared,
    meant,
    one_of,
    option,
    parse_into,
)
from skep.base.config.security_config import SecurityConfig, option_of_listener
from skep.base.config.share_config import ShareConfig
from skep.base.config.topic_config import HOUR_MS, TopicConfig
from skep.base.config.unused_options import is_kept
from skep.base.errors import OptionError
from skep.base.log_queue import LOG_FORMATS, LOG_LEVELS

MEBIBYTE = 1 << 20


@dataclass(frozen=True)
class BrokerConfig:
    node_id: int = option("node.id", 1, at_least(0), "The id of this broker, unique in the cluster.", dynamic=False)
    log_dirs: str = option("log.dirs", "skep-data", anything, "The data directory.", dynamic=False)
    listeners: str = option(
        "listeners",
        "127.0.0.1:9092",
        anything,
        "What to listen on: host:port, or a list of NAME://host:port. Port 0 chooses a free port.",
        dynamic=False,
    )
    advertised_listeners: str = option(
        "advertised.listeners",
        "",
        anything,
        "What clients and other brokers connect to, as listeners. Empty: the addresses of listeners.",
        dynamic=False,
    )
    broker_rack: str = option(
        "broker.rack", "", anything, "The rack or availability zone of this broker.", dynamic=False
    )
    num_partitions: int = option(
        "num.partitions", 1, at_least(1), "The number of partitions of a topic that is created without one."
    )
    default_replication_factor: int = option(
        "default.replication.factor", 1, at_least(1), "The replication factor of a topic that is created without one."
    )
    auto_create_topics_enable: bool = option(
        "auto.create.topics.enable",
        True,
        anything,
        "Whether a request for a topic that does not exist creates it. For requests of other machines this must "
        "have been set to true.",
    )
    max_auto_created_topics: int = option(
        "skep.max.auto.created.topics",
        100,
        at_least(1),
        "The most topics that one Metadata request creates. The client retries for the others.",
    )
    delete_topic_enable: bool = option("delete.topic.enable", True, anything, "Whether topics may be deleted.")
    max_partitions: int = option(
        "skep.max.partitions", 20_000, at_least(1), "The most partitions that one broker holds, over all topics."
    )
    held_max_partitions: int = option(
        "skep.held.max.partitions",
        100,
        at_least(0),
        "The most partitions of held topics in the cluster. Each needs a megabyte, ten threads and twenty file "
        "descriptors in the worker of its leader.",
    )
    max_request_partitions: int = option(
        "max.request.partition.size.limit",
        2_000,
        at_least(1),
        "The most partitions in one DescribeTopicPartitions response. The client continues with the next request.",
    )
    socket_request_max_bytes: int = option(
        "socket.request.max.bytes",
        100 * MEBIBYTE,
        at_least(1),
        "The largest request. A connection that sends a larger one is closed.",
        dynamic=False,
    )
    queued_max_request_bytes: int = option(
        "queued.max.request.bytes",
        512 * MEBIBYTE,
        at_least(MEBIBYTE),
        "Bytes of unfinished requests over all connections. Above it, large requests wait to be read.",
        type=OptionType.LONG,
        dynamic=False,
    )
    max_connections: int = option(
        "max.connections", 10_000, at_least(1), "The most connections. Further ones are closed at once."
    )
    connections_max_idle_ms: int = option(
        "connections.max.idle.ms",
        600_000,
        at_least(-1),
        "A connection without a request for this long is closed. -1: never.",
        type=OptionType.LONG,
    )
    max_inflight_requests: int = option(
        "skep.max.inflight.requests",
        100,
        at_least(1),
        "The most requests of one connection without a response. Further ones are left in the socket.",
        dynamic=False,
    )
    fetch_max_bytes: int = option(
        "fetch.max.bytes",
        55 * MEBIBYTE,
        at_least(1024),
        "The most bytes in one fetch response, whatever the client requests.",
    )
    max_incremental_fetch_session_cache_slots: int = option(
        "max.incremental.fetch.session.cache.slots", 1000, at_least(0), "The most fetch sessions (KIP-227)."
    )
    max_fetch_session_partitions: int = option(
        "skep.max.fetch.session.partitions",
        100_000,
        at_least(0),
        "The most partitions in all fetch sessions together. Above it, fetches are served without a session.",
    )
    max_request_elements: int = option(
        "skep.max.request.elements",
        200_000,
        at_least(1),
        "The most elements in all arrays of one request. A connection that sends more is closed.",
    )
    queued_max_response_bytes: int = option(
        "skep.queued.max.response.bytes",
        256 * MEBIBYTE,
        at_least(MEBIBYTE),
        "Bytes of responses that clients have not read yet, over all connections. Above it, clients that read nothing "
        "are disconnected.",
        type=OptionType.LONG,
        dynamic=False,
    )
    loop_delay_warn_ms: int = option(
        "skep.loop.delay.warn.ms",
        200,
        at_least(1),
        "Anything that blocks the event loop for this long is logged, with the function and the request.",
        type=OptionType.LONG,
    )
    log_format: str = option(
        "skep.log.format",
        "text",
        one_of(*LOG_FORMATS),
        "The format of log lines: text, or json with one object per line.",
        dynamic=False,
    )
    log_level: str = option(
        "skep.log.level",
        "INFO",
        one_of(*LOG_LEVELS),
        "The least severe lines that are logged: DEBUG, INFO, WARNING or ERROR.",
    )
    max_response_bytes: int = option(
        "skep.max.response.bytes",
        100 * 1024 * 1024,
        at_least(64 * 1024),
        "The largest response, not counting records. A request for more is refused. Clients accept 100 MB by default.",
    )
    max_client_id_bytes: int = option(
        "skep.max.client.id.bytes", 4096, at_least(1), "The longest client id of a request.", dynamic=False
    )
    max_producers_per_partition: int = option(
        "skep.max.producers.per.partition",
        10_000,
        at_least(1),
        "The most idempotent producers that one partition keeps, not counting those in a transaction. Above it, the "
        "one that was silent longest is dropped as if it had expired.",
        dynamic=False,
    )
    producer_id_expiration_ms: int = option(
        "producer.id.expiration.ms",
        86_400_000,
        at_least(1),
        "How long the sequence numbers of an idempotent producer are kept after its last record.",
    )
    log_retention_check_interval_ms: int = option(
        "log.retention.check.interval.ms",
        300_000,
        at_least(1),
        "How often retention is checked.",
        type=OptionType.LONG,
    )
    acknowledged_check_interval_ms: int = option(
        "skep.acknowledged.check.interval.ms",
        5_000,
        at_least(10),
        "How often topics with skep.delete.when.acknowledged delete what all groups have acknowledged. Less often if "
        "there are so many groups that a check takes long.",
        type=OptionType.LONG,
    )
    max_compacted_batch_records: int = option(
        "skep.max.compacted.batch.records",
        100_000,
        at_least(1),
        "The most records in one batch for a compacted topic. Each record's key is checked when the batch arrives.",
    )
    log_cleaner_enable: bool = option(
        "log.cleaner.enable", True, anything, "Whether topics with cleanup.policy=compact are compacted."
    )
    log_cleaner_backoff_ms: int = option(
        "log.cleaner.backoff.ms",
        15_000,
        at_least(1),
        "How often logs are checked for compaction.",
        type=OptionType.LONG,
    )
    log_cleaner_dedupe_buffer_size: int = option(
        "log.cleaner.dedupe.buffer.size",
        128 * MEBIBYTE,
        at_least(MEBIBYTE),
        "Memory for the keys of one compaction pass, 32 bytes each. Keys that do not fit are left for the next pass.",
        type=OptionType.LONG,
    )
    log_cleaner_io_max_bytes_per_second: float = option(
        "log.cleaner.io.max.bytes.per.second",
        1.7976931348623157e308,
        at_least(1),
        "The most bytes that compaction reads and writes per second.",
    )
    retention_hour: int = option(
        "skep.retention.hour",
        -1,
        between(-1, 23),
        "The hour of the day (local time) in which expired segments are deleted, for example 4. -1: at any time.",
    )
    disk_check_interval_ms: int = option(
        "skep.disk.check.interval.ms",
        10_000,
        at_least(1),
        "How often disk usage is checked.",
        type=OptionType.LONG,
    )
    disk_clean_ratio: float = option(
        "skep.disk.clean.ratio",
        0.75,
        between(0, 1),
        "Above this share of the disk in use, expired segments are deleted at once, not only in skep.retention.hour.",
    )
    disk_force_ratio: float = option(
        "skep.disk.force.ratio",
        1.0,
        between(0, 1),
        "Above this share of the disk in use, for example 0.85, the oldest segments are deleted although they have not "
        "expired, even with unlimited retention. 1: never.",
    )
    disk_refuse_ratio: float = option(
        "skep.disk.refuse.ratio",
        0.90,
        between(0, 1),
        "Above this share of the disk in use, produce requests are refused with KAFKA_STORAGE_ERROR, which clients "
        "retry. Reads continue. Produce is accepted again after the next check that finds less in use.",
    )
    flush_checkpoint_interval_ms: int = option(
        "log.flush.offset.checkpoint.interval.ms",
        60_000,
        at_least(1),
        "How often the recovery points of logs are written. Recovery after a crash starts from them.",
    )
    max_open_files: int = option(
        "skep.max.open.files",
        0,
        at_least(0),
        "The most segment files that are kept open. 0: half of the process's file descriptors. Connections use the "
        "rest, except 64; further connections are closed at once.",
        dynamic=False,
    )
    background_threads: int = option(
        "background.threads",
        10,
        at_least(1),
        "The number of threads for syncs, for reads from disk, and for background work such as deletions, each.",
    )

    cluster: ClusterConfig = field(default_factory=ClusterConfig, metadata=SECTION)
    coordinator: CoordinatorConfig = field(default_factory=CoordinatorConfig, metadata=SECTION)
    security: SecurityConfig = field(default_factory=SecurityConfig, metadata=SECTION)
    share: ShareConfig = field(default_factory=ShareConfig, metadata=SECTION)
    of_listeners: Mapping[str, str] = field(default_factory=dict)
    """Options with the prefix of a listener, by their full names (``security_of_listener``)."""
    topic_defaults: TopicConfig = field(default_factory=TopicConfig)


ALIASES: dict[str, tuple[str, int]] = {
    "broker.id": ("node.id", 1),
    "log.dir": ("log.dirs", 1),
    "log.retention.minutes": ("log.retention.ms", 60_000),
    "log.retention.hours": ("log.retention.ms", HOUR_MS),
    "log.roll.hours": ("log.roll.ms", HOUR_MS),
    "log.roll.jitter.hours": ("log.roll.jitter.ms", HOUR_MS),
}
"""Kafka's other names for an option, with the factor from the alias's unit to the option's."""


def topic_defaults_by_broker_name() -> dict[str, Option]:
    """Returns the topic options that have a broker-wide default, by the broker option's name."""
    return {o.broker_name: o for o in declared(TopicConfig).values() if o.broker_name is not None}


def read_broker_config(texts: Mapping[str, str], base: BrokerConfig | None = None) -> BrokerConfig:
    """Returns ``base`` (by default the defaults) with the named options set from text. Raises OptionError."""
    base = base or BrokerConfig()
    own, defaults, of_listeners = {}, {}, {}
    topic_options = topic_defaults_by_broker_name()
    known = declared(BrokerConfig)
    for name, text in without_aliases(texts).items():
        if name in topic_options:
            defaults[name] = text
        elif name in known:
            own[name] = text
        elif (of_listener := option_of_listener(name)) is not None:
            of_listener.parse(text)
            of_listeners[name] = text
        else:
            raise OptionError(f"{name}: there is no such option{meant(name, option_names())}")
    parsed = {topic_options[name].field: _parse_as(name, topic_options[name], text) for name, text in defaults.items()}
    return replace(
        parse_into(base, own),
        topic_defaults=replace(base.topic_defaults, **parsed),
        of_listeners={**base.of_listeners, **of_listeners},
    )


def config_in_force(texts: Mapping[str, str], *overrides: Mapping[str, str]) -> BrokerConfig:
    """Returns the options given at start with those that were changed at run time, the last of ``overrides`` first."""
    changed = {name: text for some in overrides for name, text in some.items() if not is_kept(name)}
    return read_broker_config({**texts, **changed})


def _parse_as(name: str, topic_option: Option, text: str) -> Any:
    return replace(topic_option, name=name).parse(text)


def without_aliases(texts: Mapping[str, str]) -> dict[str, str]:
    """Returns the options by their main names. If several names are given, the finer unit wins, as in Kafka."""
    plain = {name: text for name, text in texts.items() if name not in ALIASES}
    coarsest_first = sorted((name for name in texts if name in ALIASES), key=lambda name: -ALIASES[name][1])
    aliased: dict[str, str] = {}
    for name in coarsest_first:
        target, factor = ALIASES[name]
        text = texts[name]
        if factor != 1 and text.strip() != "-1":
            try:
                text = str(int(text) * factor)
            except ValueError:
                raise OptionError(f"{name}={text}: expected a number") from None
        aliased[target] = text
    return {**aliased, **plain}


def option_names() -> list[str]:
    """Returns every name that ``read_broker_config`` accepts."""
    return [*declared(BrokerConfig), *topic_defaults_by_broker_name(), *ALIASES]
