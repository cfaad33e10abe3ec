"""The options of writing, each declared once: those of Spark's Kafka sink, and ``delivery``.

A Kafka producer's own settings (``kafka.*``) are taken where they mean something here and refused with the reason where
not, as in ``options``; so are the few that are let through with a warning.
"""

import dataclasses
from collections.abc import Mapping

from pyspark_skep.read.read_options import parse_options, warn_without_effect
from skep.base.config.option import Check, anything, at_least, one_of, option
from skep.base.errors import OptionError
from skep.client.cluster_client import parse_addresses
from skep.client.errors import ClientError
from skep.records.compression import Codec

EXACTLY_ONCE, AT_LEAST_ONCE = "exactly-once", "at-least-once"


def _only(*allowed: str, why: str) -> Check:
    return lambda text: None if text.lower() in allowed else why


WITHOUT_EFFECT = {
    "kafka.linger.ms": "rows come by the thousand, none waits for more",
    "path": "rows go to the topic that the option topic or their column topic names",
}


@dataclasses.dataclass(frozen=True)
class WriteOptions:
    """What a writer was asked for; goes to every task. Text that is empty was not given."""

    bootstrap_servers: str = option(
        "kafka.bootstrap.servers", "", anything, "Addresses of brokers, HOST:PORT separated by commas."
    )
    topic: str = option(
        "topic", "", anything, "The topic of every row. Goes before a column topic; without it that column is needed."
    )
    delivery: str = option(
        "delivery",
        EXACTLY_ONCE,
        one_of(EXACTLY_ONCE, AT_LEAST_ONCE),
        "Whether rows are written in transactions, so that each is there once for who reads committed records, or at "
        "once, so that a task or an epoch that is tried again writes its rows again.",
    )
    include_headers: bool = option(
        "includeHeaders",
        False,
        anything,
        "true changes nothing, as in Spark: a column headers is always written. false: a warning.",
    )
    client_id: str = option("kafka.client.id", "skep-spark", anything, "The name in the broker's logs and metrics.")
    compression: str = option(
        "kafka.compression.type", "none", one_of(*(codec.label for codec in Codec)), "How batches are packed."
    )
    batch_size: int = option("kafka.batch.size", 1_000_000, at_least(1), "Bytes that a batch is filled up to.")
    max_request_size: int = option(
        "kafka.max.request.size", 4 << 20, at_least(1), "Bytes of one request. A larger batch is sent alone."
    )
    buffer_memory: int = option(
        "kafka.buffer.memory", 32 << 20, at_least(1), "Bytes that a task may have unacknowledged."
    )
    request_timeout_ms: int = option(
        "kafka.request.timeout.ms", 30_000, at_least(1), "How long to wait for one answer of a broker."
    )
    delivery_timeout_ms: int = option(
        "kafka.delivery.timeout.ms", 120_000, at_least(1), "How long rows are sent again before the task fails."
    )
    transaction_timeout_ms: int = option(
        "kafka.transaction.timeout.ms",
        300_000,
        at_least(1),
        "After what time a broker aborts the transaction of a task that nobody has ended. An epoch that takes longer "
        "loses nothing, but its early rows are written a second time. With at-least-once of no effect, with a warning.",
    )
    linger_ms: int = option(
        "kafka.linger.ms", 0, at_least(0), f"Of no effect, with a warning: {WITHOUT_EFFECT['kafka.linger.ms']}."
    )
    acks: str = option("kafka.acks", "all", _only("all", "-1", why="only all is there: fewer lose rows"), "all.")
    enable_idempotence: str = option(
        "kafka.enable.idempotence", "true", _only("true", why="without it a lost connection doubles rows"), "true."
    )
    security_protocol: str = option(
        "kafka.security.protocol", "PLAINTEXT", _only("plaintext", why="only PLAINTEXT is there"), "PLAINTEXT."
    )

    @property
    def is_exactly_once(self) -> bool:
        return self.delivery == EXACTLY_ONCE

    @property
    def codec(self) -> Codec:
        return Codec.named(self.compression)


_BYTES = "keys and values are written as the bytes they are"
REFUSED = {
    "kafka.key.serializer": _BYTES,
    "kafka.value.serializer": _BYTES,
    "kafka.transactional.id": "every task has an id of its own",
    "kafka.partitioner.class": "rows go where Kafka's default partitioner puts them, or a column partition says",
    "kafka.retries": "rows are sent again until kafka.delivery.timeout.ms is over",
    "kafka.max.in.flight.requests.per.connection": "order is kept and nothing is doubled whatever it is",
    "kafka.interceptor.classes": "there is no JVM producer to intercept",
    "subscribe": "that is an option of reading; to write, name the topic with topic",
}
SPARKS_OWN = {
    "checkpointLocation": "Spark's own: where it keeps the progress of a stream.",
    "queryName": "Spark's own: the name that it shows for a stream.",
    "path": f"Of no effect, with a warning: {WITHOUT_EFFECT['path']}.",
}
"""What Spark itself reads, and hands on."""


def write_options(given: Mapping[str, str]) -> WriteOptions:
    """The options of a write, all that can be checked without a broker checked."""
    of_spark = {name.lower() for name in SPARKS_OWN}
    own = {name: text for name, text in given.items() if name.lower() not in of_spark}
    options = parse_options(WriteOptions(), own, REFUSED)
    if not options.bootstrap_servers.strip():
        raise OptionError("kafka.bootstrap.servers must be given: addresses of brokers, HOST:PORT separated by commas")
    try:
        parse_addresses(options.bootstrap_servers)
    except ClientError as error:
        raise OptionError(f"kafka.bootstrap.servers={options.bootstrap_servers}: {error}") from None
    return options


def warn_of_ignored(given: Mapping[str, str]) -> None:
    """A word for what never means anything, and for what does not by its value or beside another option."""
    lowered = {name.lower(): text.strip().lower() for name, text in given.items()}
    reasons = dict(WITHOUT_EFFECT)
    if lowered.get("includeheaders") == "false":
        reasons["includeHeaders"] = "a column headers is always written; drop the column to write none"
    if lowered.get("delivery") == AT_LEAST_ONCE:
        reasons["kafka.transaction.timeout.ms"] = f"with delivery={AT_LEAST_ONCE} there is no transaction"
    warn_without_effect(given, reasons)
