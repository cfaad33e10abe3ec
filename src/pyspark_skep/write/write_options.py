"""The options of writes, each declared once: those of Spark's Kafka sink, and ``delivery``.

A setting of a Kafka producer (``kafka.*``) is accepted if it has a meaning here and refused with a reason if not. A few
are accepted with a warning.
"""

import dataclasses
from collections.abc import Mapping

from pyspark_skep.given_options import parse_options, security_of, warn_without_effect
from skep.base.config.option import Check, anything, at_least, one_of, option
from skep.base.errors import OptionError
from skep.client.cluster_client import parse_addresses
from skep.client.errors import ClientError
from skep.client.security.client_security import PLAINTEXT, ClientSecurity
from skep.records.compression import Codec

EXACTLY_ONCE, AT_LEAST_ONCE = "exactly-once", "at-least-once"


def _only(*allowed: str, why: str) -> Check:
    return lambda text: None if text.lower() in allowed else why


WITHOUT_EFFECT = {
    "kafka.linger.ms": "rows arrive in batches of thousands, so none waits for more",
    "path": "rows are written to the topic that the option topic or the column topic names",
}


@dataclasses.dataclass(frozen=True)
class WriteOptions:
    """The options of a writer, sent to every task. Empty text means that the option was not given."""

    bootstrap_servers: str = option(
        "kafka.bootstrap.servers", "", anything, "Addresses of brokers: HOST:PORT, separated by commas."
    )
    topic: str = option(
        "topic",
        "",
        anything,
        "The topic of every row. Takes precedence over a column topic; without it that column is required.",
    )
    delivery: str = option(
        "delivery",
        EXACTLY_ONCE,
        one_of(EXACTLY_ONCE, AT_LEAST_ONCE),
        "exactly-once writes rows in transactions: consumers with read_committed see each row once. at-least-once "
        "writes them directly: a task or an epoch that is retried writes its rows again.",
    )
    include_headers: bool = option(
        "includeHeaders",
        False,
        anything,
        "Has no effect: a column headers is always written. Spark ignores true as well; false logs a warning.",
    )
    client_id: str = option(
        "kafka.client.id", "skep-spark", anything, "The client id that brokers show in logs and metrics."
    )
    compression: str = option(
        "kafka.compression.type",
        "none",
        one_of(*(codec.label for codec in Codec)),
        "The codec that compresses batches.",
    )
    batch_size: int = option("kafka.batch.size", 1_000_000, at_least(1), "Bytes up to which a batch is filled.")
    max_request_size: int = option(
        "kafka.max.request.size", 4 << 20, at_least(1), "Bytes of one request at most. A larger batch is sent alone."
    )
    buffer_memory: int = option(
        "kafka.buffer.memory", 32 << 20, at_least(1), "Bytes that a task may have sent without an acknowledgement."
    )
    request_timeout_ms: int = option(
        "kafka.request.timeout.ms", 30_000, at_least(1), "How long to wait for one response of a broker."
    )
    delivery_timeout_ms: int = option(
        "kafka.delivery.timeout.ms", 120_000, at_least(1), "How long rows are retried before the task fails."
    )
    transaction_timeout_ms: int = option(
        "kafka.transaction.timeout.ms",
        300_000,
        at_least(1),
        "How long a task's transaction may stay open before a broker aborts it. An epoch that takes longer loses no "
        "rows, but writes its early rows a second time. Has no effect, with a warning, with at-least-once.",
    )
    linger_ms: int = option(
        "kafka.linger.ms", 0, at_least(0), f"Has no effect, with a warning: {WITHOUT_EFFECT['kafka.linger.ms']}."
    )
    acks: str = option(
        "kafka.acks",
        "all",
        _only("all", "-1", why="only all is supported: fewer acknowledgements can lose rows"),
        "Only all.",
    )
    enable_idempotence: str = option(
        "kafka.enable.idempotence",
        "true",
        _only("true", why="without it a lost connection duplicates rows"),
        "Only true.",
    )
    security: ClientSecurity = PLAINTEXT
    """Of the options kafka.security.protocol, kafka.sasl.* and kafka.ssl.*; it shows no secret."""

    @property
    def is_exactly_once(self) -> bool:
        return self.delivery == EXACTLY_ONCE

    @property
    def codec(self) -> Codec:
        return Codec.named(self.compression)


_BYTES = "keys and values are written as they are, as bytes"
REFUSED = {
    "kafka.key.serializer": _BYTES,
    "kafka.value.serializer": _BYTES,
    "kafka.transactional.id": "every task has its own transactional id",
    "kafka.partitioner.class": "Kafka's default partitioner chooses the partition, or a column partition names it",
    "kafka.retries": "rows are retried until kafka.delivery.timeout.ms has passed",
    "kafka.max.in.flight.requests.per.connection": "rows keep their order and are not duplicated in any case",
    "kafka.interceptor.classes": "there is no JVM producer to intercept",
    "subscribe": "it is an option of reads; to write, name the topic with topic",
}
SPARKS_OWN = {
    "checkpointLocation": "Read by Spark: where it stores the progress of a stream.",
    "queryName": "Read by Spark: the name that it shows for a stream.",
    "path": f"Has no effect, with a warning: {WITHOUT_EFFECT['path']}.",
}
"""Options that Spark reads itself and also passes on."""


def write_options(given: Mapping[str, str]) -> WriteOptions:
    """Returns the options of a write, checked as far as possible without a broker."""
    of_spark = {name.lower() for name in SPARKS_OWN}
    own = {name: text for name, text in given.items() if name.lower() not in of_spark}
    options = parse_options(WriteOptions(security=security_of(own)), own, REFUSED)
    if not options.bootstrap_servers.strip():
        raise OptionError(
            "kafka.bootstrap.servers must be given: addresses of brokers as HOST:PORT, separated by commas"
        )
    try:
        parse_addresses(options.bootstrap_servers, options.security.protocol)
    except ClientError as error:
        raise OptionError(f"kafka.bootstrap.servers={options.bootstrap_servers}: {error}") from None
    return options


def warn_of_ignored(given: Mapping[str, str]) -> None:
    """Warns of options that never have an effect, and of those that a value or another option disables."""
    lowered = {name.lower(): text.strip().lower() for name, text in given.items()}
    reasons = dict(WITHOUT_EFFECT)
    if lowered.get("includeheaders") == "false":
        reasons["includeHeaders"] = "a column headers is always written; drop the column to write none"
    if lowered.get("delivery") == AT_LEAST_ONCE:
        reasons["kafka.transaction.timeout.ms"] = f"delivery={AT_LEAST_ONCE} uses no transaction"
    warn_without_effect(given, reasons)
