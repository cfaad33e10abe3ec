"""Images: what a delta gives, and that it leaves the image it came from alone."""

import uuid

from hypothesis import given
from hypothesis import strategies as st

from skep.base.ids import BrokerId
from skep.metadata.cluster_image import CLUSTER_DEFAULT, ClusterImage
from skep.metadata.model import BrokerRecord, PartitionRecord, TopicRecord

PARTITIONS = (PartitionRecord.new([BrokerId(1)]),)


def topic(name: str, number: int = 2) -> TopicRecord:
    return TopicRecord(name, uuid.UUID(int=number), PARTITIONS)


def test_a_topic_is_found_by_name_and_by_id():
    image = ClusterImage("c").with_topic(topic("a", 7))
    assert image.topics["a"] is image.topics_by_id[uuid.UUID(int=7)]


def test_a_delta_leaves_the_image_it_came_from_as_it_was():
    first = ClusterImage.of("c", topics=[topic("a", 2)])
    second = first.with_topic(topic("b", 3))
    third = second.without_topic("a")
    assert set(first.topics) == {"a"}
    assert set(second.topics) == {"a", "b"}
    assert set(third.topics) == {"b"}
    assert set(third.topics_by_id) == {uuid.UUID(int=3)}


def test_a_topic_made_anew_is_no_longer_found_by_its_old_id():
    image = ClusterImage("c").with_topic(topic("a", 2)).with_topic(topic("a", 3))
    assert set(image.topics_by_id) == {uuid.UUID(int=3)}


def test_removing_a_topic_that_is_not_there_gives_the_same_image():
    image = ClusterImage("c")
    assert image.without_topic("a") is image
    assert image.without_broker(BrokerId(1)) is image


def test_brokers_come_and_go():
    broker = BrokerRecord(BrokerId(1), "host", 9092)
    image = ClusterImage("c").with_broker(broker)
    assert image.brokers == {1: broker}
    assert image.without_broker(BrokerId(1)).brokers == {}


def test_overrides_of_one_broker_and_of_all_are_kept_apart_and_none_are_forgotten():
    image = (
        ClusterImage("c").with_broker_config(BrokerId(1), {"a": "1"}).with_broker_config(CLUSTER_DEFAULT, {"a": "2"})
    )
    assert image.broker_config(BrokerId(1)) == {"a": "1"}
    assert image.broker_config(CLUSTER_DEFAULT) == {"a": "2"}
    assert image.broker_config(BrokerId(2)) == {}
    assert image.with_broker_config(BrokerId(1), {}).broker_configs == {CLUSTER_DEFAULT: {"a": "2"}}


names = st.sampled_from(["a", "b", "a.b", "c"])
steps = st.lists(st.tuples(names, st.none() | st.integers(2, 6)), max_size=20)


@given(steps)
def test_any_row_of_deltas_gives_the_image_that_loading_the_result_gives(steps):
    image, topics = ClusterImage("c"), {}
    for serial, (name, number) in enumerate(steps):
        if number is None:
            image = image.without_topic(name)
            topics.pop(name, None)
        else:
            # ids are unique in a cluster, so each made one is new
            topics[name] = topic(name, 1000 + 10 * serial + number)
            image = image.with_topic(topics[name])
    assert image == ClusterImage.of("c", topics=topics.values())


def test_configs_of_groups_are_kept_by_group():
    image = ClusterImage("c").with_group_config("g", {"a": "1"})
    assert image.group_config("g") == {"a": "1"}
    assert image.group_config("h") == {}
    assert image.with_group_config("g", {}).group_configs == {}
