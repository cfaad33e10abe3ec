"""The options of a broker, under Kafka's names where Kafka has the thing.

The defaults of topics (``log.segment.bytes`` and the like) are broker options too; they are declared once, in
``topic_config.py``, and reach a topic through ``BrokerConfig.topic_defaults``.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from skep.base.config.cluster_config import ClusterConfig
from skep.base.config.option import Option, OptionType, anything, at_least, between, declared, meant, option, parse_into
from skep.base.config.topic_config import HOUR_MS, TopicConfig
from skep.base.errors import OptionError

MEBIBYTE = 1 << 20


@dataclass(frozen=True)
class BrokerConfig(ClusterConfig):
    node_id: int = option("node.id", 1, at_least(0), "The number by which this broker is known.", dynamic=False)
    log_dirs: str = option("log.dirs", "skep-data", anything, "The directory that holds the data.", dynamic=False)
    listeners: str = option(
        "listeners", "127.0.0.1:9092", anything, "host:port to listen on; port 0 takes a free one.", dynamic=False
    )
    advertised_listeners: str = option(
        "advertised.listeners",
        "",
        anything,
        "host:port that clients are told to connect to; empty: the address listened on.",
        dynamic=False,
    )
    broker_rack: str = option("broker.rack", "", anything, "The rack or zone that the broker stands in.", dynamic=False)
    num_partitions: int = option(
        "num.partitions", 1, at_least(1), "Partitions of a topic that is created without a number."
    )
    default_replication_factor: int = option(
        "default.replication.factor", 1, at_least(1), "Replicas of a topic that is created without a number."
    )
    auto_create_topics_enable: bool = option(
        "auto.create.topics.enable", True, anything, "Whether asking for a topic that does not exist creates it."
    )
    max_auto_created_topics: int = option(
        "skep.max.auto.created.topics",
        100,
        at_least(1),
        "Topics that one Metadata request creates at the most; the client asks again for the others.",
    )
    delete_topic_enable: bool = option("delete.topic.enable", True, anything, "Whether topics may be deleted.")
    max_partitions: int = option(
        "skep.max.partitions", 20_000, at_least(1), "Partitions that one broker holds at the most, over all topics."
    )
    max_request_partitions: int = option(
        "max.request.partition.size.limit",
        2_000,
        at_least(1),
        "Partitions that one DescribeTopicPartitions answer holds at the most; the client asks on from there.",
    )
    socket_request_max_bytes: int = option(
        "socket.request.max.bytes",
        100 * MEBIBYTE,
        at_least(1),
        "The largest request; a connection that announces more is closed.",
        dynamic=False,
    )
    queued_max_request_bytes: int = option(
        "queued.max.request.bytes",
        512 * MEBIBYTE,
        at_least(MEBIBYTE),
        "Bytes of unfinished requests held over all connections; past that, large requests wait to be read.",
        type=OptionType.LONG,
        dynamic=False,
    )
    max_connections: int = option(
        "max.connections", 10_000, at_least(1), "Connections at the most; one more is closed at once."
    )
    connections_max_idle_ms: int = option(
        "connections.max.idle.ms",
        600_000,
        at_least(-1),
        "A connection without a request for so long is closed; -1: never.",
        type=OptionType.LONG,
    )
    max_inflight_requests: int = option(
        "skep.max.inflight.requests",
        100,
        at_least(1),
        "Unanswered requests of one connection; more are left in the socket.",
        dynamic=False,
    )
    fetch_max_bytes: int = option(
        "fetch.max.bytes",
        55 * MEBIBYTE,
        at_least(1024),
        "The most that one fetch answer carries, whatever the client asks.",
    )
    max_incremental_fetch_session_cache_slots: int = option(
        "max.incremental.fetch.session.cache.slots", 1000, at_least(0), "Fetch sessions (KIP-227) kept at the most."
    )
    max_fetch_session_partitions: int = option(
        "skep.max.fetch.session.partitions",
        100_000,
        at_least(0),
        "Partitions that all fetch sessions remember together; beyond that, fetches are served without a session.",
    )
    max_request_elements: int = option(
        "skep.max.request.elements",
        200_000,
        at_least(1),
        "Elements that the arrays of one request may have together; a request with more closes its connection.",
    )
    queued_max_response_bytes: int = option(
        "skep.queued.max.response.bytes",
        256 * MEBIBYTE,
        at_least(MEBIBYTE),
        "Bytes of responses that clients have not read yet, over all connections; past that, clients that read nothing "
        "are disconnected.",
        type=OptionType.LONG,
        dynamic=False,
    )
    loop_delay_warn_ms: int = option(
        "skep.loop.delay.warn.ms",
        200,
        at_least(1),
        "A request or anything else that holds the event loop for so long is logged with its name.",
        type=OptionType.LONG,
    )
    max_response_bytes: int = option(
        "skep.max.response.bytes",
        100 * 1024 * 1024,
        at_least(64 * 1024),
        "The largest response, not counting records; a request for more is refused. Clients take 100 MB by default.",
    )
    max_client_id_bytes: int = option(
        "skep.max.client.id.bytes", 4096, at_least(1), "The longest client id that a request may carry.", dynamic=False
    )
    max_producers_per_partition: int = option(
        "skep.max.producers.per.partition",
        10_000,
        at_least(1),
        "Idempotent producers that one partition remembers, not counting those in a transaction; past that the longest "
        "silent is forgotten as if expired.",
        dynamic=False,
    )
    producer_id_expiration_ms: int = option(
        "producer.id.expiration.ms",
        86_400_000,
        at_least(1),
        "How long an idempotent producer's sequence numbers are remembered after its last record.",
    )
    log_retention_check_interval_ms: int = option(
        "log.retention.check.interval.ms",
        300_000,
        at_least(1),
        "How often segments are checked for retention.",
        type=OptionType.LONG,
    )
    max_compacted_batch_records: int = option(
        "skep.max.compacted.batch.records",
        100_000,
        at_least(1),
        "Records that one batch for a compacted topic may have; each is looked at for its key when it comes.",
    )
    log_cleaner_enable: bool = option(
        "log.cleaner.enable", True, anything, "Whether topics with cleanup.policy=compact are compacted."
    )
    log_cleaner_backoff_ms: int = option(
        "log.cleaner.backoff.ms",
        15_000,
        at_least(1),
        "How often it is looked whether a log has to be compacted.",
        type=OptionType.LONG,
    )
    log_cleaner_dedupe_buffer_size: int = option(
        "log.cleaner.dedupe.buffer.size",
        128 * MEBIBYTE,
        at_least(MEBIBYTE),
        "Memory for the keys of one pass of compaction, 32 bytes each; what does not fit is left for the next pass.",
        type=OptionType.LONG,
    )
    log_cleaner_io_max_bytes_per_second: float = option(
        "log.cleaner.io.max.bytes.per.second",
        1.7976931348623157e308,
        at_least(1),
        "How many bytes compaction reads and writes in a second at the most.",
    )
    retention_hour: int = option(
        "skep.retention.hour",
        -1,
        between(-1, 23),
        "The hour of the day (local time) in which expired segments are deleted, e.g. 4; -1: at any time.",
    )
    disk_check_interval_ms: int = option(
        "skep.disk.check.interval.ms",
        10_000,
        at_least(1),
        "How often the disk's use is looked at.",
        type=OptionType.LONG,
    )
    disk_clean_ratio: float = option(
        "skep.disk.clean.ratio",
        0.75,
        between(0, 1),
        "Above this part of the disk in use, expired segments are deleted at once, not at the set hour.",
    )
    disk_force_ratio: float = option(
        "skep.disk.force.ratio",
        1.0,
        between(0, 1),
        "Above this part of the disk in use, e.g. 0.85, the oldest segments are deleted although they have not "
        "expired, also those that are to be kept for ever; 1: never.",
    )
    disk_refuse_ratio: float = option(
        "skep.disk.refuse.ratio",
        0.90,
        between(0, 1),
        "Above this part of the disk in use, produce is refused with KAFKA_STORAGE_ERROR, which clients retry; reading "
        "goes on. It is accepted again at the next check that finds less in use.",
    )
    flush_checkpoint_interval_ms: int = option(
        "log.flush.offset.checkpoint.interval.ms",
        60_000,
        at_least(1),
        "How often the point up to which logs are synced is written down; recovery starts from it.",
    )
    max_open_files: int = option(
        "skep.max.open.files",
        0,
        at_least(0),
        "Segment files kept open at the most; 0: half of what the process may open. Connections share the rest, but "
        "for 64; one more is closed at once.",
        dynamic=False,
    )
    background_threads: int = option(
        "background.threads",
        10,
        at_least(1),
        "Threads for syncs, as many for cold reads, and as many for deletions and the like.",
        dynamic=False,
    )

    topic_defaults: TopicConfig = field(default_factory=TopicConfig)


ALIASES: dict[str, tuple[str, int]] = {
    "broker.id": ("node.id", 1),
    "log.dir": ("log.dirs", 1),
    "log.retention.minutes": ("log.retention.ms", 60_000),
    "log.retention.hours": ("log.retention.ms", HOUR_MS),
    "log.roll.hours": ("log.roll.ms", HOUR_MS),
    "log.roll.jitter.hours": ("log.roll.jitter.ms", HOUR_MS),
}
"""Other names that Kafka has for the same thing, and how many of the option's unit one of theirs is."""


def topic_defaults_by_broker_name() -> dict[str, Option]:
    """The topic options that have a broker-wide default, by the broker option's name."""
    return {o.broker_name: o for o in declared(TopicConfig).values() if o.broker_name is not None}


def read_broker_config(texts: Mapping[str, str], base: BrokerConfig | None = None) -> BrokerConfig:
    """``base`` (the defaults) with the named options set from text; OptionError names what is wrong."""
    base = base or BrokerConfig()
    own, defaults = {}, {}
    topic_options = topic_defaults_by_broker_name()
    known = declared(BrokerConfig)
    for name, text in without_aliases(texts).items():
        if name in topic_options:
            defaults[name] = text
        elif name in known:
            own[name] = text
        else:
            raise OptionError(f"{name}: there is no such option{meant(name, option_names())}")
    parsed = {topic_options[name].field: _parse_as(name, topic_options[name], text) for name, text in defaults.items()}
    return replace(parse_into(base, own), topic_defaults=replace(base.topic_defaults, **parsed))


def _parse_as(name: str, topic_option: Option, text: str) -> Any:
    return replace(topic_option, name=name).parse(text)


def without_aliases(texts: Mapping[str, str]) -> dict[str, str]:
    """The options by their own names. Where several names are given, the finer unit wins, as in Kafka."""
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
    """Every name that ``read_broker_config`` takes."""
    return [*declared(BrokerConfig), *topic_defaults_by_broker_name(), *ALIASES]
