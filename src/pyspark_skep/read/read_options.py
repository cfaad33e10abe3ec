"""The options of reading, each declared once: Spark's name for it, default, check and a sentence.

Spark hands options over with their names in lower case, whatever the user wrote; here they are found again whatever
their case. Every option of Spark's Kafka source works or is refused by name; a Kafka consumer's own settings
(``kafka.*``) are taken where they mean something here and refused with the reason where not, for a setting that is
silently ignored is a surprise kept for later. The few that queries on ``format("kafka")`` often have, and that change
no row, are let through with a warning that names them.
"""

import dataclasses
import logging
import re
from collections.abc import Mapping
from typing import TypeVar

from pyspark_skep.read.positions import Position, choose_ending, choose_starting, parse_assign
from skep.base.config.option import Check, OptionType, anything, at_least, declared, meant, one_of, option
from skep.base.errors import OptionError

LONG = OptionType.LONG
C = TypeVar("C")

_log = logging.getLogger(__name__)
_DURATION = re.compile(r"\s*(-?[0-9]+)\s*(us|ms|s|m|min|h|d)?\s*", re.ASCII)
_UNIT_MS = {None: 1.0, "us": 0.001, "ms": 1, "s": 1e3, "m": 6e4, "min": 6e4, "h": 3.6e6, "d": 8.64e7}


def _a_duration(value: str) -> str | None:
    return None if _DURATION.fullmatch(value.lower()) else "must be a duration like 10s, 15m or 1h"


def _a_folder(value: str) -> str | None:
    return "must be a folder that the driver and all executors see" if "://" in value else None


def duration_ms(text: str) -> int:
    """``15m`` in milliseconds; a bare number is milliseconds, as in Spark's settings."""
    found = _DURATION.fullmatch(text.lower())
    assert found is not None, "checked when it was parsed"
    return int(int(found[1]) * _UNIT_MS[found[2]])


def _only(value: str, why: str) -> Check:
    return lambda text: None if text.lower() == value.lower() else why


WITHOUT_EFFECT = {
    "groupIdPrefix": "no consumer group is joined, so none needs a name",
    "kafka.group.id": "no consumer group is joined; to see progress in a group use groupId",
}


@dataclasses.dataclass(frozen=True)
class ReadOptions:
    """What a reader was asked for. Text that is empty and numbers that are 0 were not given."""

    bootstrap_servers: str = option(
        "kafka.bootstrap.servers", "", anything, "Addresses of brokers, HOST:PORT separated by commas."
    )
    subscribe: tuple[str, ...] = option("subscribe", (), anything, "Topics to read, separated by commas.")
    subscribe_pattern: str = option(
        "subscribePattern", "", anything, "A regular expression; topics whose whole name it matches are read."
    )
    assign: str = option("assign", "", anything, 'Partitions to read, as JSON: {"orders": [0, 1]}.')
    starting_offsets: str = option(
        "startingOffsets",
        "",
        anything,
        'earliest, latest, or JSON {"orders": {"0": 23, "1": -2}} with -2 for earliest and -1 for latest. '
        "By default earliest for a batch and latest for a stream.",
    )
    ending_offsets: str = option(
        "endingOffsets", "", anything, "latest, or JSON as in startingOffsets with -1 for latest. Batch only."
    )
    starting_timestamp: str = option(
        "startingTimestamp",
        "",
        anything,
        "Milliseconds since 1970: reading starts at the first record that is not older. Goes before "
        "startingOffsetsByTimestamp and startingOffsets.",
    )
    ending_timestamp: str = option(
        "endingTimestamp",
        "",
        anything,
        "Milliseconds since 1970: reading ends before the first record that is not older. Batch only. Goes before "
        "endingOffsetsByTimestamp and endingOffsets.",
    )
    starting_offsets_by_timestamp: str = option(
        "startingOffsetsByTimestamp",
        "",
        anything,
        'As startingTimestamp, per partition: {"orders": {"0": 1700000000000}}. Goes before startingOffsets.',
    )
    ending_offsets_by_timestamp: str = option(
        "endingOffsetsByTimestamp", "", anything, "As endingTimestamp, per partition. Goes before endingOffsets."
    )
    starting_offsets_by_timestamp_strategy: str = option(
        "startingOffsetsByTimestampStrategy",
        "error",
        one_of("error", "latest"),
        "What to do when a partition has no record at or after the starting time: fail, or start at its end. Of no "
        "effect, with a warning, where no starting time is given.",
    )
    fail_on_data_loss: bool = option(
        "failOnDataLoss",
        True,
        anything,
        "Whether the query fails when records that it should have read are gone (retention, a deleted or recreated "
        "topic). If not, it goes on with what is there and logs a warning.",
    )
    poll_timeout_ms: int = option(
        "kafkaConsumer.pollTimeoutMs",
        120_000,
        at_least(1),
        "How long a task waits without any progress for a broker before it fails.",
        type=LONG,
    )
    fetch_offset_num_retries: int = option(
        "fetchOffset.numRetries", 3, at_least(0), "How often the driver at least asks again for offsets."
    )
    fetch_offset_retry_interval_ms: int = option(
        "fetchOffset.retryIntervalMs", 10, at_least(0), "Pause before the driver asks again, at first.", type=LONG
    )
    min_partitions: int = option(
        "minPartitions", 0, at_least(1), "Large partitions are cut so that there are about this many tasks."
    )
    max_records_per_partition: int = option(
        "maxRecordsPerPartition", 0, at_least(1), "Partitions are cut so that no task has more offsets.", type=LONG
    )
    min_offsets_per_trigger: int = option(
        "minOffsetsPerTrigger",
        0,
        at_least(1),
        "A micro-batch waits until there are this many offsets, at most for maxTriggerDelay.",
        type=LONG,
    )
    max_offsets_per_trigger: int = option(
        "maxOffsetsPerTrigger",
        0,
        at_least(1),
        "Offsets of one micro-batch, shared out over the partitions by how much each has.",
        type=LONG,
    )
    max_trigger_delay: str = option(
        "maxTriggerDelay",
        "15m",
        _a_duration,
        "How long minOffsetsPerTrigger may hold a micro-batch back. Of no effect, with a warning, without that.",
    )
    include_headers: bool = option("includeHeaders", False, anything, "Whether rows have the column headers.")
    push_filters: bool = option(
        "pushFilters",
        False,
        anything,
        "Whether filters on topic, partition, offset and timestamp narrow what a batch fetches; also needs "
        "spark.sql.python.filterPushdown.enabled. Batch only, and only for a DataFrame that is used in one query, "
        "once: Spark keeps what it planned with the filters of the first use, and later uses would lack rows.",
    )
    archive: str = option(
        "archive",
        "",
        _a_folder,
        "The folder that `skep archive` writes to: what the log no longer has is read from there. Batch only.",
    )
    group_id: str = option(
        "groupId",
        "",
        anything,
        "A consumer group that the progress of a stream is also committed to, so that its lag can be seen with "
        "ordinary tools. Of no meaning for where the query starts.",
    )
    group_id_prefix: str = option(
        "groupIdPrefix", "", anything, f"Of no effect, with a warning: {WITHOUT_EFFECT['groupIdPrefix']}."
    )
    kafka_group_id: str = option(
        "kafka.group.id", "", anything, f"Of no effect, with a warning: {WITHOUT_EFFECT['kafka.group.id']}."
    )
    isolation_level: str = option(
        "kafka.isolation.level",
        "read_committed",
        one_of("read_committed", "read_uncommitted"),
        "Whether records of open and aborted transactions are left out. Spark's Kafka source reads them by default; "
        "here the default is to leave them out.",
    )
    client_id: str = option("kafka.client.id", "skep-spark", anything, "The name in the broker's logs and metrics.")
    fetch_max_bytes: int = option(
        "kafka.fetch.max.bytes", 2 << 20, at_least(1), "Bytes of one answer. A larger record batch comes whole."
    )
    max_partition_fetch_bytes: int = option(
        "kafka.max.partition.fetch.bytes", 0, at_least(1), "The same: each answer is of one partition."
    )
    request_timeout_ms: int = option(
        "kafka.request.timeout.ms", 30_000, at_least(1), "How long to wait for one answer of a broker."
    )
    default_api_timeout_ms: int = option(
        "kafka.default.api.timeout.ms",
        60_000,
        at_least(1),
        "How long the driver waits for brokers that do not answer before the query fails.",
    )
    security_protocol: str = option(
        "kafka.security.protocol", "PLAINTEXT", _only("PLAINTEXT", "only PLAINTEXT is there"), "PLAINTEXT."
    )
    check_crcs: str = option(
        "kafka.check.crcs", "true", _only("true", "the checksum of a batch is always checked"), "true."
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


_NO_GROUP = "no consumer group is joined, Spark decides which task reads what"
_ONE_SOURCE = "say with startingOffsets where to start; Spark keeps track of what was read"
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
    "kafka.max.poll.records": "rows go to Spark in Arrow batches; there is no poll",
    "kafka.fetch.min.bytes": "where a read ends is known before it starts, so nothing waits for more bytes",
    "kafka.fetch.max.wait.ms": "where a read ends is known before it starts, so nothing waits for more bytes",
    "kafka.retry.backoff.ms": "the driver's pause is fetchOffset.retryIntervalMs",
    "provider": "Spark does not hand the options of a table of its catalog to a Python data source, so CREATE TABLE "
    "... USING skep cannot work; use CREATE TEMPORARY VIEW ... USING skep OPTIONS (...)",
    "path": "topics are named by subscribe, subscribePattern or assign",
    "topic": "that is an option of writing; to read, name topics with subscribe",
}
_JVM = "it is a setting of Kafka's Java consumer that means nothing here"
_SECURITY = ("kafka.ssl.", "kafka.sasl.")
STREAM_ONLY = ("min_offsets_per_trigger", "max_offsets_per_trigger", "max_trigger_delay")
BATCH_ONLY = ("ending_offsets", "ending_timestamp", "ending_offsets_by_timestamp", "archive")


def parse_options(config: C, given: Mapping[str, str], refused: Mapping[str, str]) -> C:
    """``config`` with the given options set. OptionError, naming it, for one that is unknown or refused."""
    known = declared(config)
    spelled = {name.lower(): name for name in known}
    reasons = {name.lower(): (name, why) for name, why in refused.items()}
    values = {}
    for name, text in given.items():
        lower = name.lower()
        if lower in spelled:
            row = known[spelled[lower]]
            values[row.field] = row.parse(text)
        elif lower in reasons:
            raise OptionError("option {} is not supported: {}".format(*reasons[lower]))
        elif lower.startswith(_SECURITY):
            raise OptionError(f"option {name} is not supported: only PLAINTEXT connections are there")
        elif lower.startswith("kafka."):
            raise OptionError(f"option {name} is not supported: {_JVM}{meant(lower, spelled)}")
        else:
            raise OptionError(f"{name}: there is no such option{_meant(lower, spelled)}")
    changed: C = dataclasses.replace(config, **values)  # type: ignore[type-var]
    return changed


def is_read(given: Mapping[str, str]) -> bool:
    """Whether options are those of reading; a source is made before Spark says what for."""
    return not {"subscribe", "subscribepattern", "assign"}.isdisjoint(name.lower() for name in given)


def warn_of_ignored(given: Mapping[str, str]) -> None:
    """A word for what never means anything in a read, and for what does not without another option."""
    lowered = {name.lower() for name, text in given.items() if text.strip()}
    reasons = dict(WITHOUT_EFFECT)
    if "minoffsetspertrigger" not in lowered:
        reasons["maxTriggerDelay"] = "without minOffsetsPerTrigger no micro-batch is held back"
    if lowered.isdisjoint({"startingtimestamp", "startingoffsetsbytimestamp"}):
        reasons["startingOffsetsByTimestampStrategy"] = "no starting time is given"
    warn_without_effect(given, reasons)


def warn_without_effect(given: Mapping[str, str], reasons: Mapping[str, str]) -> None:
    """A word for each given option that ``reasons`` names."""
    lowered = {name.lower() for name in given}
    for name, why in reasons.items():
        if name.lower() in lowered:
            _log.warning("option %s has no effect: %s", name, why)


def _meant(lower: str, spelled: Mapping[str, str]) -> str:
    hint = meant(lower, spelled)
    for name in spelled:
        hint = hint.replace(f" {name}?", f" {spelled[name]}?")
    return hint


def read_options(given: Mapping[str, str], *, streaming: bool | None = None) -> ReadOptions:
    """The options of a read, all that can be checked without a broker checked. None: batch or stream is not known."""
    options = parse_options(ReadOptions(), given, REFUSED)
    _check_topics(options)
    if not options.bootstrap_servers.strip():
        raise OptionError("kafka.bootstrap.servers must be given: addresses of brokers, HOST:PORT separated by commas")
    if 0 < options.max_offsets_per_trigger < options.min_offsets_per_trigger:
        raise OptionError(
            f"minOffsetsPerTrigger={options.min_offsets_per_trigger} is more than "
            f"maxOffsetsPerTrigger={options.max_offsets_per_trigger}"
        )
    # Read for their mistakes only; the readers read them again.
    options.starting(streaming=streaming is not False)
    options.ending()
    if streaming is True:
        _refuse_given(options, BATCH_ONLY, "a stream has no end; it is for batch reads")
        _refuse_given(options, ("push_filters",), "Spark gives a stream no filters; it is for batch reads")
    elif streaming is False:
        _check_batch(options)
    return options


def _check_topics(options: ReadOptions) -> None:
    rows = declared(ReadOptions)
    given = [name for name in ("subscribe", "subscribePattern", "assign") if getattr(options, rows[name].field)]
    if len(given) != 1:
        problem = f"{' and '.join(given)} are given" if given else "none is given"
        raise OptionError(f"exactly one of subscribe, subscribePattern and assign names what to read; {problem}")
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
        raise OptionError("groupId: progress is committed by streams; a batch read has none")
    if options.archive and not options.committed:
        raise OptionError("archive: it has committed records only, and kafka.isolation.level is read_uncommitted")
    for name, row in declared(ReadOptions).items():
        if row.field in STREAM_ONLY and getattr(options, row.field) != row.default:
            _log.warning("option %s has no effect on a batch read", name)


def _refuse_given(options: ReadOptions, fields: tuple[str, ...], why: str) -> None:
    for name, row in declared(ReadOptions).items():
        if row.field in fields and getattr(options, row.field) != row.default:
            raise OptionError(f"{name}: {why}")
