"""The options of reads, each declared once: Spark's name, default, check and a sentence.

Every option of Spark's Kafka source works or is refused by name. A setting of a Kafka consumer (``kafka.*``) is
accepted if it has a meaning here and refused with a reason if not: a setting that is ignored silently surprises its
user later. A few that queries on ``format("kafka")`` often set, and that change no row, are accepted with a warning.
"""

import dataclasses
import logging
import re
from collections.abc import Mapping

from pyspark_skep.given_options import parse_options, security_of, warn_without_effect
from pyspark_skep.read.positions import Position, choose_ending, choose_starting, parse_assign
from skep.base.config.option import Check, OptionType, anything, at_least, declared, one_of, option
from skep.base.errors import OptionError
from skep.client.security.client_security import PLAINTEXT, ClientSecurity

LONG = OptionType.LONG

_log = logging.getLogger(__name__)
_DURATION = re.compile(r"\s*(-?[0-9]+)\s*(us|ms|s|m|min|h|d)?\s*", re.ASCII)
_UNIT_MS = {None: 1.0, "us": 0.001, "ms": 1, "s": 1e3, "m": 6e4, "min": 6e4, "h": 3.6e6, "d": 8.64e7}


def _a_duration(value: str) -> str | None:
    return None if _DURATION.fullmatch(value.lower()) else "must be a duration like 10s, 15m or 1h"


def _a_folder(value: str) -> str | None:
    return "must be a folder that the driver and all executors can read, not a URL" if "://" in value else None


def duration_ms(text: str) -> int:
    """Returns a duration such as ``15m`` in milliseconds. A number without a unit is milliseconds, as in Spark."""
    found = _DURATION.fullmatch(text.lower())
    assert found is not None, "checked when it was parsed"
    return int(int(found[1]) * _UNIT_MS[found[2]])


def _only(value: str, why: str) -> Check:
    return lambda text: None if text.lower() == value.lower() else why


WITHOUT_EFFECT = {
    "groupIdPrefix": "no consumer group is joined, so no group id is generated",
    "kafka.group.id": "no consumer group is joined; use groupId to commit progress to a group",
}


@dataclasses.dataclass(frozen=True)
class ReadOptions:
    """The options of a reader. Empty text and the number 0 mean that the option was not given."""

    bootstrap_servers: str = option(
        "kafka.bootstrap.servers", "", anything, "Addresses of brokers: HOST:PORT, separated by commas."
    )
    subscribe: tuple[str, ...] = option("subscribe", (), anything, "Topics to read, separated by commas.")
    subscribe_pattern: str = option(
        "subscribePattern", "", anything, "A regular expression. Topics whose whole name it matches are read."
    )
    assign: str = option("assign", "", anything, 'Partitions to read, as JSON: {"orders": [0, 1]}.')
    starting_offsets: str = option(
        "startingOffsets",
        "",
        anything,
        'earliest, latest, or JSON {"orders": {"0": 23, "1": -2}} with -2 for earliest and -1 for latest. '
        "The default is earliest for a batch and latest for a stream.",
    )
    ending_offsets: str = option(
        "endingOffsets", "", anything, "latest, or JSON as in startingOffsets with -1 for latest. Batch only."
    )
    starting_timestamp: str = option(
        "startingTimestamp",
        "",
        anything,
        "Milliseconds since 1970. Reading starts at the first record at or after this time. Takes precedence over "
        "startingOffsetsByTimestamp and startingOffsets.",
    )
    ending_timestamp: str = option(
        "endingTimestamp",
        "",
        anything,
        "Milliseconds since 1970. Reading ends before the first record at or after this time. Batch only. Takes "
        "precedence over endingOffsetsByTimestamp and endingOffsets.",
    )
    starting_offsets_by_timestamp: str = option(
        "startingOffsetsByTimestamp",
        "",
        anything,
        'startingTimestamp by partition: {"orders": {"0": 1700000000000}}. Takes precedence over startingOffsets.',
    )
    ending_offsets_by_timestamp: str = option(
        "endingOffsetsByTimestamp",
        "",
        anything,
        "endingTimestamp for each partition. Takes precedence over endingOffsets.",
    )
    starting_offsets_by_timestamp_strategy: str = option(
        "startingOffsetsByTimestampStrategy",
        "error",
        one_of("error", "latest"),
        "What to do if a partition has no record at or after the starting time: error fails the query, latest starts "
        "at the partition's end. Has no effect, with a warning, if no starting time is given.",
    )
    fail_on_data_loss: bool = option(
        "failOnDataLoss",
        True,
        anything,
        "Whether the query fails if records that it should read were deleted (by retention, or with their topic). If "
        "false, it logs a warning and continues with the records that are left.",
    )
    poll_timeout_ms: int = option(
        "kafkaConsumer.pollTimeoutMs",
        120_000,
        at_least(1),
        "How long a task waits for brokers without progress before it fails.",
        type=LONG,
    )
    fetch_offset_num_retries: int = option(
        "fetchOffset.numRetries",
        3,
        at_least(0),
        "How often the driver repeats a failed request for offsets, at the least.",
    )
    fetch_offset_retry_interval_ms: int = option(
        "fetchOffset.retryIntervalMs",
        10,
        at_least(0),
        "How long the driver waits before the first repetition. The wait doubles each time, up to 1 s.",
        type=LONG,
    )
    min_partitions: int = option(
        "minPartitions", 0, at_least(1), "Partitions are split so that there are about this many tasks."
    )
    max_records_per_partition: int = option(
        "maxRecordsPerPartition",
        0,
        at_least(1),
        "Partitions are split so that no task reads more offsets than this.",
        type=LONG,
    )
    min_offsets_per_trigger: int = option(
        "minOffsetsPerTrigger",
        0,
        at_least(1),
        "A micro-batch waits until there are this many new offsets, but no longer than maxTriggerDelay.",
        type=LONG,
    )
    max_offsets_per_trigger: int = option(
        "maxOffsetsPerTrigger",
        0,
        at_least(1),
        "Offsets that one micro-batch reads at most, divided among the partitions in proportion to what each has.",
        type=LONG,
    )
    max_trigger_delay: str = option(
        "maxTriggerDelay",
        "15m",
        _a_duration,
        "How long minOffsetsPerTrigger may delay a micro-batch. Has no effect, with a warning, without that option.",
    )
    include_headers: bool = option("includeHeaders", False, anything, "Whether rows have the column headers.")
    push_filters: bool = option(
        "pushFilters",
        False,
        anything,
        "Whether filters on topic, partition, offset and timestamp limit what a batch fetches. Also needs "
        "spark.sql.python.filterPushdown.enabled. Batch only, and only for a DataFrame that is used once, in one "
        "query: Spark keeps the plan with the filters of the first use, and later uses would miss rows.",
    )
    archive: str = option(
        "archive",
        "",
        _a_folder,
        "The folder that `skep archive` writes to. Records that the log no longer has are read from there. Batch only.",
    )
    group_id: str = option(
        "groupId",
        "",
        anything,
        "A consumer group to which a stream also commits its progress, so that ordinary tools show its lag. It does "
        "not affect where the query starts.",
    )
    group_id_prefix: str = option(
        "groupIdPrefix", "", anything, f"Has no effect, with a warning: {WITHOUT_EFFECT['groupIdPrefix']}."
    )
    kafka_group_id: str = option(
        "kafka.group.id", "", anything, f"Has no effect, with a warning: {WITHOUT_EFFECT['kafka.group.id']}."
    )
    isolation_level: str = option(
        "kafka.isolation.level",
        "read_committed",
        one_of("read_committed", "read_uncommitted"),
        "read_committed omits the records of open and aborted transactions. The default of Spark's Kafka source is "
        "read_uncommitted.",
    )
    client_id: str = option(
        "kafka.client.id", "skep-spark", anything, "The client id that brokers show in logs and metrics."
    )
    fetch_max_bytes: int = option(
        "kafka.fetch.max.bytes",
        2 << 20,
        at_least(1),
        "Bytes of one response at most. A larger record batch is returned whole.",
    )
    max_partition_fetch_bytes: int = option(
        "kafka.max.partition.fetch.bytes",
        0,
        at_least(1),
        "The same limit, because each request fetches one partition. The lower of the two applies.",
    )
    request_timeout_ms: int = option(
        "kafka.request.timeout.ms", 30_000, at_least(1), "How long to wait for one response of a broker."
    )
    default_api_timeout_ms: int = option(
        "kafka.default.api.timeout.ms",
        60_000,
        at_least(1),
        "How long the driver retries brokers that do not respond before the query fails.",
    )
    security: ClientSecurity = PLAINTEXT
    """Of the options kafka.security.protocol, kafka.sasl.* and kafka.ssl.*; it shows no secret."""
    check_crcs: str = option(
        "kafka.check.crcs",
        "true",
        _only("true", "the checksum of a batch is always checked"),
        "Only true: checksums are always checked.",
    )

    @property
    def committed(self) -> bool:
        return self.isolation_level == "read_committed"

    @property
    def fetch_bytes(self) -> int:
        return min(self.fetch_max_bytes, self.max_partition_fetch_bytes or self.fetch_max_bytes)

    def starting(self, *, streaming: bool) -> Position:
        return choose_starting(
            self.starting_timestamp, self.starting_offsets_by_timestamp, self.starting_offsets, streaming=streaming
        )

    def ending(self) -> Position:
        return choose_ending(self.ending_timestamp, self.ending_offsets_by_timestamp, self.ending_offsets)


_NO_GROUP = "no consumer group is joined; Spark decides which task reads what"
_ONE_SOURCE = "set startingOffsets to say where to start; Spark keeps track of what was read"
_BYTES = "keys and values are bytes; cast or parse the columns"
REFUSED = {
    "kafka.auto.offset.reset": _ONE_SOURCE,
    "kafka.key.deserializer": _BYTES,
    "kafka.value.deserializer": _BYTES,
    "kafka.enable.auto.commit": "Spark keeps track of what was read; groupId commits it to a group as well",
    "kafka.auto.commit.interval.ms": "nothing is committed by time; groupId commits after each micro-batch",
    "kafka.interceptor.classes": "there is no JVM consumer to intercept",
    "kafka.group.instance.id": _NO_GROUP,
    "kafka.group.protocol": _NO_GROUP,
    "kafka.partition.assignment.strategy": _NO_GROUP,
    "kafka.session.timeout.ms": _NO_GROUP,
    "kafka.heartbeat.interval.ms": _NO_GROUP,
    "kafka.max.poll.interval.ms": _NO_GROUP,
    "kafka.max.poll.records": "rows are passed to Spark in Arrow batches; there is no poll",
    "kafka.fetch.min.bytes": "the end of a read is known before it starts, so no fetch waits for more bytes",
    "kafka.fetch.max.wait.ms": "the end of a read is known before it starts, so no fetch waits for more bytes",
    "kafka.retry.backoff.ms": "set fetchOffset.retryIntervalMs for the driver",
    "provider": "Spark does not pass the options of a catalog table to a Python data source, so CREATE TABLE "
    "... USING skep cannot work; use CREATE TEMPORARY VIEW ... USING skep OPTIONS (...)",
    "path": "name topics with subscribe, subscribePattern or assign",
    "topic": "it is an option of writes; to read, name topics with subscribe",
}
STREAM_ONLY = ("min_offsets_per_trigger", "max_offsets_per_trigger", "max_trigger_delay")
BATCH_ONLY = ("ending_offsets", "ending_timestamp", "ending_offsets_by_timestamp", "archive")


def is_read(given: Mapping[str, str]) -> bool:
    """Returns whether the options are those of a read. Spark creates a source before it says what for."""
    return not {"subscribe", "subscribepattern", "assign"}.isdisjoint(name.lower() for name in given)


def warn_of_ignored(given: Mapping[str, str]) -> None:
    """Warns of options that never affect a read, and of those that do not without another option."""
    lowered = {name.lower() for name, text in given.items() if text.strip()}
    reasons = dict(WITHOUT_EFFECT)
    if "minoffsetspertrigger" not in lowered:
        reasons["maxTriggerDelay"] = "without minOffsetsPerTrigger no micro-batch is delayed"
    if lowered.isdisjoint({"startingtimestamp", "startingoffsetsbytimestamp"}):
        reasons["startingOffsetsByTimestampStrategy"] = "no starting time is given"
    warn_without_effect(given, reasons)


def read_options(given: Mapping[str, str], *, streaming: bool | None = None) -> ReadOptions:
    """Returns the options of a read, checked as far as possible without a broker.

    ``streaming`` is None when it is not known whether the read is a batch or a stream.
    """
    options = parse_options(ReadOptions(security=security_of(given)), given, REFUSED)
    _check_topics(options)
    if not options.bootstrap_servers.strip():
        raise OptionError(
            "kafka.bootstrap.servers must be given: addresses of brokers as HOST:PORT, separated by commas"
        )
    if 0 < options.max_offsets_per_trigger < options.min_offsets_per_trigger:
        raise OptionError(
            f"minOffsetsPerTrigger={options.min_offsets_per_trigger} is more than "
            f"maxOffsetsPerTrigger={options.max_offsets_per_trigger}"
        )
    # Parsed here only to raise errors; the readers parse them again.
    options.starting(streaming=streaming is not False)
    options.ending()
    if streaming is True:
        _refuse_given(options, BATCH_ONLY, "a stream has no end; use it in a batch read")
        _refuse_given(options, ("push_filters",), "Spark passes no filters to a stream; use it in a batch read")
    elif streaming is False:
        _check_batch(options)
    return options


def _check_topics(options: ReadOptions) -> None:
    rows = declared(ReadOptions)
    given = [name for name in ("subscribe", "subscribePattern", "assign") if getattr(options, rows[name].field)]
    if len(given) != 1:
        problem = f"{' and '.join(given)} are given" if given else "none is given"
        raise OptionError(f"set exactly one of subscribe, subscribePattern and assign; {problem}")
    if options.subscribe_pattern:
        try:
            re.compile(options.subscribe_pattern.strip())
        except re.error as error:
            raise OptionError(
                f"subscribePattern={options.subscribe_pattern}: not a regular expression ({error})"
            ) from None
    elif options.assign:
        parse_assign(options.assign)


def _check_batch(options: ReadOptions) -> None:
    if options.group_id:
        raise OptionError("groupId: only streams commit progress; a batch read has none")
    if options.archive and not options.committed:
        raise OptionError(
            "archive: an archive holds only committed records, but kafka.isolation.level is read_uncommitted"
        )
    for name, row in declared(ReadOptions).items():
        if row.field in STREAM_ONLY and getattr(options, row.field) != row.default:
            _log.warning("option %s has no effect on a batch read", name)


def _refuse_given(options: ReadOptions, fields: tuple[str, ...], why: str) -> None:
    for name, row in declared(ReadOptions).items():
        if row.field in fields and getattr(options, row.field) != row.default:
            raise OptionError(f"{name}: {why}")
