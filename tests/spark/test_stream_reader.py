"""Streaming reads driven as Spark drives them, in this process: offsets, limits, what is new, what is gone."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, ReadMinRows

from pyspark_skep import DefaultSource
from pyspark_skep.read import lookup, stream_reader
from pyspark_skep.read.data_loss import DataLoss
from pyspark_skep.read.lookup import TopicMissing
from pyspark_skep.read.stream_reader import StreamReader
from pyspark_skep.write import decisions
from skep.base.errors import OptionError
from skep.client import list_offsets
from skep.testing import EmbeddedBroker
from tests.spark.conftest import Topics
from tests.spark.test_batch_reader import shorten
from tests.waiting import wait_until

Offsets = dict[str, Any]
Open = Callable[..., StreamReader]


@pytest.fixture
def open_stream(broker: EmbeddedBroker) -> Open:
    def open_stream(topic: str | None = None, **options: str) -> StreamReader:
        given = {"kafka.bootstrap.servers": broker.bootstrap_servers, "startingOffsets": "earliest", **options}
        if topic is not None:
            given["subscribe"] = topic
        source = DefaultSource(given)
        return source.streamReader(source.schema())

    return open_stream


def through_checkpoint(offsets: Offsets) -> Offsets:
    return json.loads(json.dumps(offsets))


def latest(reader: StreamReader, start: Offsets) -> Offsets:
    return through_checkpoint(reader.latestOffset(start, reader.getDefaultReadLimit()))


def rows(reader: StreamReader, start: Offsets, end: Offsets) -> list[tuple[str, int, int]]:
    found = []
    for partition in reader.partitions(start, end):
        for batch in reader.read(partition):
            found += [(row["topic"], row["partition"], row["offset"]) for row in batch.to_pylist()]
    return found


def numbers(offsets: Offsets) -> dict[str, dict[str, int]]:
    """Offsets without the ids of topics, and without where the first micro-batch began."""
    return {topic: {key: value for key, value in entry.items() if key.isdecimal()} for topic, entry in offsets.items()}


def test_a_stream_reads_from_where_it_starts_to_where_the_topic_ends_and_then_what_is_new(
    topics: Topics, topic: str, open_stream: Open
):
    topics.create(topic, 2)
    topics.fill(topic, range(10), partition=lambda index: index % 2)
    reader = open_stream(topic)
    start = through_checkpoint(reader.initialOffset())
    assert numbers(start) == {topic: {"0": 0, "1": 0}}
    first = latest(reader, start)
    assert numbers(first) == {topic: {"0": 5, "1": 5}}
    assert rows(reader, start, first) == [(topic, number, offset) for number in (0, 1) for offset in range(5)]
    assert json.dumps(latest(reader, first)) == json.dumps(first), "nothing new is the same text"
    topics.fill(topic, range(3), partition=1)
    second = latest(reader, first)
    assert rows(reader, first, second) == [(topic, 1, offset) for offset in range(5, 8)]
    assert reader.reportLatestOffset() == second


def test_the_default_start_is_the_end_of_the_topic(topics: Topics, topic: str, broker: EmbeddedBroker):
    topics.create(topic)
    topics.fill(topic, range(7))
    source = DefaultSource({"kafka.bootstrap.servers": broker.bootstrap_servers, "subscribe": topic})
    assert numbers(source.streamReader(source.schema()).initialOffset()) == {topic: {"0": 7}}


def test_a_start_beyond_the_end_is_refused(topics: Topics, topic: str, open_stream: Open):
    topics.create(topic)
    with pytest.raises(OptionError, match="ends at 0, but 5 is given"):
        open_stream(topic, startingOffsets=f'{{"{topic}": {{"0": 5}}}}').initialOffset()


def test_offsets_of_a_trigger_are_limited_over_all_partitions(topics: Topics, topic: str, open_stream: Open):
    topics.create(topic, 2)
    topics.fill(topic, range(100), partition=lambda index: int(index >= 80))
    reader = open_stream(topic, maxOffsetsPerTrigger="10")
    assert reader.getDefaultReadLimit() == ReadMaxRows(10)
    start = reader.initialOffset()
    assert numbers(latest(reader, start)) == {topic: {"0": 8, "1": 2}}
    assert numbers(reader.reportLatestOffset()) == {topic: {"0": 80, "1": 20}}
    everything = reader.latestOffset(start, ReadAllAvailable())
    assert numbers(everything) == {topic: {"0": 80, "1": 20}}, "Spark's word goes before the option"


def test_a_trigger_waits_for_enough_offsets_but_not_for_ever(
    topics: Topics, topic: str, open_stream: Open, monkeypatch: pytest.MonkeyPatch
):
    now_s = [1000.0]
    monkeypatch.setattr(stream_reader, "monotonic", lambda: now_s[0])
    topics.create(topic)
    topics.fill(topic, range(3))
    reader = open_stream(topic, minOffsetsPerTrigger="10", maxTriggerDelay="60s")
    assert reader.getDefaultReadLimit() == ReadMinRows(10)
    first = latest(reader, reader.initialOffset())
    assert numbers(first) == {topic: {"0": 3}}, "the first trigger has been waited for long enough"
    topics.fill(topic, range(9))
    assert latest(reader, first) == first
    now_s[0] += 61
    second = latest(reader, first)
    assert numbers(second) == {topic: {"0": 12}}
    topics.fill(topic, range(10))
    assert numbers(latest(reader, second)) == {topic: {"0": 22}}


def test_a_minimum_and_a_maximum_hold_together(topics: Topics, topic: str, open_stream: Open):
    topics.create(topic)
    topics.fill(topic, range(30))
    reader = open_stream(topic, minOffsetsPerTrigger="10", maxOffsetsPerTrigger="25")
    first = latest(reader, reader.initialOffset())
    assert numbers(first) == {topic: {"0": 25}}
    assert latest(reader, first) == first


def test_available_now_ends_at_what_was_there_at_first_whatever_the_limits(
    topics: Topics, topic: str, open_stream: Open
):
    topics.create(topic)
    topics.fill(topic, range(12))
    reader = open_stream(topic, minOffsetsPerTrigger="5", maxOffsetsPerTrigger="5")
    reader.prepareForTriggerAvailableNow()
    topics.fill(topic, range(100))
    seen = [reader.initialOffset()]
    while (end := latest(reader, seen[-1])) != seen[-1]:
        seen.append(end)
    assert [numbers(one)[topic]["0"] for one in seen] == [0, 5, 10, 12]


def test_new_partitions_and_new_topics_are_found_and_read_from_their_beginning(
    topics: Topics, topic: str, open_stream: Open
):
    from confluent_kafka.admin import NewPartitions

    topics.create(f"{topic}-a")
    reader = open_stream(subscribePattern=f"{topic}-.*", startingOffsets="latest", maxOffsetsPerTrigger="1000")
    start = reader.initialOffset()
    [grown] = topics.admin.create_partitions([NewPartitions(f"{topic}-a", 2)]).values()
    grown.result(30)
    topics.create(f"{topic}-b")
    topics.fill(f"{topic}-b", range(2))
    wait_until(lambda: len(numbers(latest(reader, start))[f"{topic}-a"]) == 2, "the new partition is seen")
    topics.fill(f"{topic}-a", range(3), partition=1)
    end = latest(reader, start)
    expected = [(f"{topic}-a", 1, offset) for offset in range(3)] + [(f"{topic}-b", 0, 0), (f"{topic}-b", 0, 1)]
    assert rows(reader, start, end) == expected


def test_a_deleted_topic_ends_the_query_or_is_left_out(topics: Topics, topic: str, open_stream: Open):
    other = topics.create(f"{topic}-other")
    topics.create(topic)
    both = f"{topic},{other}"
    strict, lenient = open_stream(both), open_stream(both, failOnDataLoss="false")
    pattern = open_stream(subscribePattern=f"{topic}.*")
    start = strict.initialOffset()
    topics.fill(topic, range(3))
    end = latest(strict, start)
    topics.delete(topic)
    with pytest.raises(TopicMissing, match=f"there is no topic '{topic}'"):
        latest(strict, start)
    with pytest.raises(DataLoss, match=f"topic '{topic}' of the checkpoint was deleted"):
        latest(pattern, start)
    with pytest.raises(DataLoss, match="was deleted before a micro-batch of it was read"):
        strict.partitions(start, end)
    assert latest(lenient, start) == start, "should it only seem to be gone, it goes on from there"
    assert rows(lenient, start, end) == []
    topics.fill(other, range(2))
    end = latest(lenient, start)
    assert rows(lenient, start, end) == [(other, 0, 0), (other, 0, 1)]


def test_a_recreated_topic_ends_the_query_or_is_read_from_its_beginning(
    topics: Topics, topic: str, open_stream: Open, caplog: pytest.LogCaptureFixture
):
    topics.create(topic)
    topics.fill(topic, range(5))
    strict, lenient = open_stream(topic), open_stream(topic, failOnDataLoss="false", maxOffsetsPerTrigger="4")
    old = strict.initialOffset()
    start = latest(strict, old)
    topics.delete(topic)
    topics.create(topic)
    topics.fill(topic, range(8))
    with pytest.raises(DataLoss, match="was deleted and created again"):
        latest(strict, start)
    with pytest.raises(DataLoss, match="was deleted and created again before"):
        strict.partitions(old, start)
    assert rows(lenient, old, start) == [], "offsets of the old topic mean nothing in the new one"
    end = latest(lenient, start)
    assert numbers(end) == {topic: {"0": 4}}
    assert rows(lenient, start, end) == [(topic, 0, offset) for offset in range(4)]
    assert "because failOnDataLoss is false" in caplog.text


def test_a_checkpoint_of_another_topic_is_an_error(topics: Topics, topic: str, open_stream: Open):
    topics.create(topic)
    other = topics.create(f"{topic}-other")
    start = open_stream(other).initialOffset()
    with pytest.raises(DataLoss, match=f"topic '{other}' of the checkpoint was deleted, or this"):
        latest(open_stream(topic), start)
    end = latest(open_stream(topic, failOnDataLoss="false"), start)
    assert numbers(end) == {topic: {"0": 0}, other: {"0": 0}}


def test_an_end_before_the_checkpoint_is_not_believed_of_a_leader_that_may_be_an_old_one(
    topics: Topics, topic: str, open_stream: Open, monkeypatch: pytest.MonkeyPatch
):
    topics.create(topic)
    topics.fill(topic, range(5))
    reader = open_stream(topic, failOnDataLoss="false")
    start = reader.initialOffset()
    end = latest(reader, start)
    ask, asked = list_offsets.list_offsets, []

    def old_at_first(cluster: Any, wanted: Any, **more: Any) -> Any:
        asked.append(wanted)
        found = ask(cluster, wanted, **more)
        return dict.fromkeys(found, 2) if len(asked) % 4 else found

    monkeypatch.setattr(list_offsets, "list_offsets", old_at_first)
    assert latest(reader, end) == end
    assert len(asked) == 4
    assert len(rows(reader, start, end)) == 5
    assert len(asked) == 8


def test_a_log_that_ends_before_the_checkpoint_is_an_error_or_is_followed_back(
    topics: Topics, topic: str, open_stream: Open, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(list_offsets, "BELIEVED_AFTER_S", 0.2)
    topics.create(topic)
    topics.fill(topic, range(5))
    strict, lenient = open_stream(topic), open_stream(topic, failOnDataLoss="false")
    start = strict.initialOffset()
    start[topic]["0"] = 50
    with pytest.raises(DataLoss, match="was read up to offset 50 and ends at 5 now"):
        latest(strict, start)
    assert numbers(latest(lenient, start)) == {topic: {"0": 5}}
    with pytest.raises(DataLoss, match="is to be read up to 50 and ends at 5"):
        strict.partitions(strict.initialOffset(), start)
    assert len(rows(lenient, strict.initialOffset(), start)) == 5


def test_what_retention_took_from_a_stream_is_an_error_or_a_warning(topics: Topics, topic: str, open_stream: Open):
    first = shorten(topics, topic)
    strict, lenient = open_stream(topic), open_stream(topic, failOnDataLoss="false")
    start = strict.initialOffset()
    start[topic]["0"] = 0
    end = latest(strict, start)
    with pytest.raises(DataLoss, match="is to be read from offset 0 and begins at"):
        strict.partitions(start, end)
    found = rows(lenient, start, end)
    assert found[0][2] >= first
    assert found[-1] == (topic, 0, 199)


def test_progress_is_committed_to_a_group_when_asked(topics: Topics, topic: str, open_stream: Open):
    topics.create(topic)
    topics.fill(topic, range(5))
    reader = open_stream(topic, groupId=f"{topic}-group")

    def committed() -> list[int]:
        asked = [ConsumerGroupTopicPartitions(f"{topic}-group")]
        [found] = topics.admin.list_consumer_group_offsets(asked).values()
        return [one.offset for one in found.result(30).topic_partitions]

    start = reader.initialOffset()
    end = latest(reader, start)
    reader.commit(end)
    assert committed() == [5]
    topics.fill(topic, range(2))
    following = latest(reader, end)
    latest(reader, following)
    assert committed() == [7], "the next question means that the batch before it is done"


def test_a_group_that_refuses_is_a_warning(
    topics: Topics, topic: str, open_stream: Open, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    from skep.base.errors import ErrorCode, KafkaError
    from skep.client import admin

    def refuse(*arguments: Any) -> None:
        raise KafkaError(ErrorCode.unknown_member_id, "the group has members")

    monkeypatch.setattr(admin, "commit_group_offsets", refuse)
    topics.create(topic)
    reader = open_stream(topic, groupId="g")
    reader.commit(reader.initialOffset())
    assert "cannot commit progress to group 'g': the group has members" in caplog.text


def test_a_broker_that_restarts_between_micro_batches_costs_time_only(topics: Topics, topic: str, skep_fresh_broker):
    own = Topics(skep_fresh_broker.bootstrap_servers)
    own.create(topic)
    own.fill(topic, range(5))
    source = DefaultSource(
        {"kafka.bootstrap.servers": own.bootstrap, "subscribe": topic, "startingOffsets": "earliest"}
    )
    reader = source.streamReader(source.schema())
    start = reader.initialOffset()
    skep_fresh_broker.kill()
    skep_fresh_broker.restart()
    end = latest(reader, start)
    assert len(rows(reader, start, end)) == 5


def test_a_topic_that_is_deleted_between_two_questions_is_no_riddle(
    topics: Topics, topic: str, open_stream: Open, monkeypatch: pytest.MonkeyPatch
):
    other = topics.create(f"{topic}-other")
    topics.create(topic)
    reader = open_stream(f"{topic},{other}", failOnDataLoss="false")
    start = reader.initialOffset()
    ask_ends = reader._lookup.latest

    def delete_first(*asked: Any) -> Any:
        monkeypatch.undo()
        topics.delete(topic)
        return ask_ends(*asked)

    monkeypatch.setattr(reader._lookup, "latest", delete_first)
    assert latest(reader, start) == start


def test_a_topic_that_is_missing_from_one_answer_is_not_read_again(
    topics: Topics, topic: str, open_stream: Open, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    topics.create(topic)
    topics.fill(topic, range(5))
    reader = open_stream(subscribePattern=topic, failOnDataLoss="false", groupId=f"{topic}-group")
    first = latest(reader, reader.initialOffset())
    with monkeypatch.context() as patched:
        patched.setattr(lookup, "list_topics", lambda cluster: [])
        second = latest(reader, first)
        latest(reader, second)
    topics.fill(topic, range(2))
    third = latest(reader, second)
    assert rows(reader, second, third) == [(topic, 0, 5), (topic, 0, 6)]
    assert caplog.text.count("of the checkpoint was deleted") == 1, (
        "each trigger finds it anew, and one warning is enough"
    )


def test_a_first_micro_batch_that_is_replayed_has_the_rows_it_was_planned_with(
    topics: Topics, topic: str, open_stream: Open
):
    topics.create(topic)
    topics.fill(topic, range(5))
    reader = open_stream(topic, startingOffsets="latest")
    start = reader.initialOffset()
    topics.fill(topic, range(3))
    end = latest(reader, start)
    topics.fill(topic, range(4))
    following = open_stream(topic, startingOffsets="latest")
    asked_again = through_checkpoint(following.initialOffset())
    assert numbers(asked_again) == {topic: {"0": 12}}
    assert rows(following, asked_again, end) == [(topic, 0, offset) for offset in (5, 6, 7)]
    assert rows(following, end, end) == [], "a micro-batch without data"
    assert rows(following, end, latest(following, end)) == [(topic, 0, offset) for offset in (8, 9, 10, 11)]


def test_what_retention_took_from_a_first_micro_batch_that_is_replayed_is_an_error(
    topics: Topics, topic: str, open_stream: Open
):
    topics.create(topic)
    topics.fill(topic, range(5))
    reader = open_stream(topic)
    end = latest(reader, reader.initialOffset())
    topics.delete_records(topic, 0, 3)
    strict, lenient = open_stream(topic), open_stream(topic, failOnDataLoss="false")
    with pytest.raises(DataLoss, match="is to be read from offset 0 and begins at 3"):
        strict.partitions(strict.initialOffset(), end)
    assert rows(lenient, lenient.initialOffset(), end) == [(topic, 0, 3), (topic, 0, 4)]


def test_offsets_of_a_first_micro_batch_can_be_given_as_a_start(topics: Topics, topic: str, open_stream: Open):
    topics.create(topic)
    topics.fill(topic, range(5))
    reader = open_stream(topic)
    end = latest(reader, reader.initialOffset())
    assert numbers(open_stream(topic, startingOffsets=json.dumps(end)).initialOffset()) == {topic: {"0": 5}}


def test_available_now_goes_on_without_a_topic_that_was_new_and_is_deleted(
    topics: Topics, topic: str, open_stream: Open
):
    old, new = topics.create(f"{topic}-old"), f"{topic}-new"
    pattern = {"subscribePattern": f"{topic}-.*", "maxOffsetsPerTrigger": "5"}
    strict, lenient = open_stream(**pattern), open_stream(**pattern, failOnDataLoss="false")
    start = strict.initialOffset()
    topics.create(new)
    topics.fill(new, range(3))
    topics.fill(old, range(3))
    for reader in (strict, lenient):
        reader.prepareForTriggerAvailableNow()
    topics.delete(new)
    with pytest.raises(DataLoss, match=f"topic '{new}' was deleted before it was read"):
        latest(strict, start)
    end = latest(lenient, start)
    assert rows(lenient, start, end) == [(old, 0, offset) for offset in range(3)]
    assert latest(lenient, end) == end


def test_a_pattern_never_means_the_topic_of_decisions(topics: Topics, topic: str, open_stream: Open):
    topics.create(topic)
    topics.create(decisions.TOPIC)
    found = list(open_stream(subscribePattern=".*").initialOffset())
    assert topic in found
    assert decisions.TOPIC not in found
    assert list(open_stream(decisions.TOPIC).initialOffset()) == [decisions.TOPIC]
