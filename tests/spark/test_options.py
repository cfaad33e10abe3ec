"""The options of reading: parsed whatever their case, checked before any broker is asked, refused with the reason."""

import pytest

from pyspark_skep.given_options import parse_options
from pyspark_skep.read.positions import EARLIEST, LATEST, AtEnd, AtOffsets, AtTime, AtTimes
from pyspark_skep.read.read_options import (
    REFUSED,
    WITHOUT_EFFECT,
    ReadOptions,
    duration_ms,
    read_options,
)
from pyspark_skep.source import DefaultSource
from skep.base.config.option import declared
from skep.base.errors import OptionError

GIVEN = {"kafka.bootstrap.servers": "127.0.0.1:9092", "subscribe": "orders"}
SPARKS_OWN = [
    "assign",
    "subscribe",
    "subscribePattern",
    "kafka.bootstrap.servers",
    "startingTimestamp",
    "startingOffsetsByTimestamp",
    "startingOffsets",
    "endingTimestamp",
    "endingOffsetsByTimestamp",
    "endingOffsets",
    "failOnDataLoss",
    "kafkaConsumer.pollTimeoutMs",
    "fetchOffset.numRetries",
    "fetchOffset.retryIntervalMs",
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "minPartitions",
    "maxRecordsPerPartition",
    "groupIdPrefix",
    "kafka.group.id",
    "includeHeaders",
    "startingOffsetsByTimestampStrategy",
]


def refusal(streaming: bool | None = None, **options: str) -> str:
    with pytest.raises(OptionError) as caught:
        read_options(GIVEN | options, streaming=streaming)
    return str(caught.value)


@pytest.mark.parametrize("name", SPARKS_OWN)
def test_every_option_of_sparks_kafka_source_is_known(name):
    assert name in declared(ReadOptions)


def test_names_are_found_whatever_their_case():
    options = read_options({"KAFKA.BOOTSTRAP.SERVERS": "a:1", "Subscribe": " a, b ,", "includeheaders": "TRUE"})
    assert options.bootstrap_servers == "a:1"
    assert options.subscribe == ("a", "b")
    assert options.include_headers is True


def test_the_defaults_are_sparks_but_for_the_isolation_level():
    options = read_options(GIVEN)
    assert options.starting(streaming=False) == AtEnd(EARLIEST)
    assert options.starting(streaming=True) == AtEnd(LATEST)
    assert options.ending() == AtEnd(LATEST)
    assert options.fail_on_data_loss is True
    assert options.committed is True


def test_an_unknown_option_is_refused_with_the_one_that_was_meant():
    assert refusal(startingoffset="latest") == "startingoffset: there is no such option; did you mean startingOffsets?"


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_meaning_here_is_refused_by_name_with_the_reason(name):
    text = refusal(**{name.lower(): "x"})
    assert name in text
    assert REFUSED[name] in text


def test_settings_of_the_java_consumer_and_of_security_are_refused_by_name():
    assert "kafka.metadata.max.age.ms" in refusal(**{"kafka.metadata.max.age.ms": "1"})
    assert "kafka.security.protocol=TLS: expected one of" in refusal(**{"kafka.security.protocol": "TLS"})
    assert "needs sasl.mechanism" in refusal(**{"kafka.security.protocol": "SASL_SSL"})


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"subscribe": ""}, "none is given"),
        ({"subscribe": " , "}, "none is given"),
        ({"subscribePattern": "a.*"}, "subscribe and subscribePattern are given"),
        ({"assign": '{"a": [0]}'}, "subscribe and assign are given"),
        ({"subscribe": "", "subscribePattern": "a("}, "not a regular expression"),
        ({"subscribe": "", "assign": "[1]"}, "JSON object"),
        ({"subscribe": "", "assign": '{"a": 1}'}, "list of partition numbers"),
        ({"subscribe": "", "assign": '{"a": [true]}'}, "list of partition numbers"),
        ({"subscribe": "", "assign": '{"a": []}'}, "names no partition"),
        ({"kafka.bootstrap.servers": ""}, "must be given"),
        ({"startingOffsets": "newest"}, "expected earliest, latest or JSON"),
        ({"startingOffsets": '{"a": {"0": 1}'}, "not JSON"),
        ({"startingOffsets": '{"a": 5}'}, "expected partitions and numbers"),
        ({"startingOffsets": '{"a": {"x": 1}}'}, "not a partition and a number"),
        ({"startingOffsets": '{"a": {"0": 1.5}}'}, "not a partition and a number"),
        ({"startingOffsets": '{"a": {"0": -3}}'}, "-3 of a-0 is not an offset"),
        ({"startingTimestamp": "yesterday"}, "milliseconds since 1970"),
        ({"startingOffsetsByTimestamp": '{"a": {"0": -1}}'}, "is not a time"),
        ({"startingOffsetsByTimestampStrategy": "earliest"}, "must be one of error, latest"),
        ({"endingOffsets": "earliest"}, "would read nothing"),
        ({"endingOffsets": '{"a": {"0": -2}}'}, "-2 is given for a-0"),
        ({"minPartitions": "0"}, "at least 1"),
        ({"maxRecordsPerPartition": "-1"}, "at least 1"),
        ({"minOffsetsPerTrigger": "10", "maxOffsetsPerTrigger": "5"}, "is more than"),
        ({"maxTriggerDelay": "soon"}, "duration like"),
        ({"failOnDataLoss": "yes"}, "true or false"),
        ({"kafka.isolation.level": "serializable"}, "read_committed"),
        ({"kafka.check.crcs": "false"}, "always checked"),
    ],
)
def test_a_mistake_is_one_clear_error(options, words):
    assert words in refusal(**options)


@pytest.mark.parametrize("name", ["endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"])
def test_a_stream_has_no_end(name):
    value = {"endingOffsets": "latest", "endingTimestamp": "5"}.get(name, '{"orders": {"0": 5}}')
    assert refusal(streaming=True, **{name: value}) == f"{name}: a stream has no end; use it in a batch read"
    read_options(GIVEN | {name: value}, streaming=False)


def test_a_batch_does_not_start_at_the_end_and_has_no_progress_to_commit():
    assert "a batch cannot start at latest" in refusal(streaming=False, startingOffsets="latest")
    assert "-1 is given for orders-0" in refusal(streaming=False, startingOffsets='{"orders": {"0": -1}}')
    assert "a batch read has none" in refusal(streaming=False, groupId="g")
    read_options(GIVEN | {"startingOffsets": "latest", "groupId": "g"}, streaming=True)


def test_limits_of_a_trigger_are_without_effect_on_a_batch_and_it_is_said(caplog):
    read_options(GIVEN | {"maxOffsetsPerTrigger": "5"}, streaming=False)
    assert "maxOffsetsPerTrigger has no effect on a batch read" in caplog.text


@pytest.mark.parametrize("name", WITHOUT_EFFECT)
def test_what_is_let_through_without_effect_is_named_in_one_warning(caplog, name):
    source = DefaultSource(GIVEN | {name.lower(): "x"})
    source.streamReader(source.schema())
    assert [record.getMessage() for record in caplog.records] == [
        f"option {name} has no effect: {WITHOUT_EFFECT[name]}"
    ]
    assert "Has no effect, with a warning" in declared(ReadOptions)[name].doc


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"maxTriggerDelay": "1m"}, "without minOffsetsPerTrigger no micro-batch is delayed"),
        ({"startingOffsetsByTimestampStrategy": "latest"}, "no starting time is given"),
        (
            {"startingOffsetsByTimestampStrategy": "latest", "endingTimestamp": "5", "startingTimestamp": " "},
            "no starting time is given",
        ),
    ],
)
def test_what_has_an_effect_only_beside_another_option_is_named_in_one_warning_without_it(caplog, given, why):
    DefaultSource(GIVEN | {name.lower(): text for name, text in given.items()})
    [name] = given.keys() & {"maxTriggerDelay", "startingOffsetsByTimestampStrategy"}
    assert [record.getMessage() for record in caplog.records] == [f"option {name} has no effect: {why}"]
    assert "Has no effect, with a warning" in declared(ReadOptions)[name].doc


@pytest.mark.parametrize(
    "given",
    [
        {"kafka.client.id": "x", "groupId": "g", "includeHeaders": "false"},
        {"maxTriggerDelay": "1m", "minOffsetsPerTrigger": "5"},
        {"startingOffsetsByTimestampStrategy": "latest", "startingTimestamp": "5"},
        {"startingOffsetsByTimestampStrategy": "latest", "startingOffsetsByTimestamp": '{"orders": {"0": 5}}'},
    ],
)
def test_options_that_have_an_effect_come_without_a_warning(caplog, given):
    DefaultSource(GIVEN | given)
    DefaultSource(GIVEN | {name.lower(): text for name, text in given.items()})
    assert caplog.text == ""


def test_a_stream_has_no_filters_pushed():
    assert refusal(streaming=True, pushFilters="true") == (
        "pushFilters: Spark passes no filters to a stream; use it in a batch read"
    )
    read_options(GIVEN | {"pushFilters": "true"}, streaming=False)


def test_times_go_before_offsets_as_in_spark():
    options = read_options(
        GIVEN
        | {
            "startingTimestamp": "1000",
            "startingOffsetsByTimestamp": '{"orders": {"0": 2000}}',
            "startingOffsets": '{"orders": {"0": 3}}',
            "endingOffsetsByTimestamp": '{"orders": {"0": 4000}}',
            "endingOffsets": "latest",
        }
    )
    assert options.starting(streaming=False) == AtTime("startingTimestamp", 1000)
    assert options.ending() == AtTimes("endingOffsetsByTimestamp", {("orders", 0): 4000})


def test_offsets_by_partition_may_carry_the_id_of_the_topic():
    options = read_options(GIVEN | {"startingOffsets": '{"orders": {"id": "abc", "0": 3, "1": -2}}'})
    assert options.starting(streaming=False) == AtOffsets(
        "startingOffsets", {("orders", 0): 3, ("orders", 1): -2}, {"orders": "abc"}
    )


@pytest.mark.parametrize(
    ("text", "ms"), [("15m", 900_000), ("10s", 10_000), ("250ms", 250), ("1h", 3_600_000), ("7", 7), ("1D", 86_400_000)]
)
def test_durations_are_read_as_spark_reads_them(text, ms):
    assert duration_ms(text) == ms


def test_other_tables_are_parsed_the_same_way():
    assert parse_options(ReadOptions(), {"SUBSCRIBE": "a"}, {}).subscribe == ("a",)
