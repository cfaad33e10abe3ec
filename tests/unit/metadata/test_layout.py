"""From keys to images."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skep.base.ids import BrokerId
from skep.metadata import layout
from skep.metadata.cluster_image import CLUSTER_DEFAULT, ClusterImage
from skep.metadata.metadata_store import Versioned
from skep.metadata.model import BrokerRecord, PartitionRecord, TopicRecord, UnreadableRecord, random_id


def entry_for(key: str, number: int) -> Versioned:
    version = number + 1
    if key.startswith("topics/"):
        topic = TopicRecord("unused", random_id(), (PartitionRecord.new([BrokerId(1)]),), {"n": str(number)})
        return Versioned(topic.encode(), version)
    if key.startswith("brokers/"):
        return Versioned(BrokerRecord(BrokerId(0), "host", number).encode(), version)
    if key.startswith("deleting/"):
        return Versioned(layout.Deletion(f"t{number}", ()).encode(), version)
    return Versioned(layout.encode_config({"n": str(number)}), version)


keys = st.sampled_from(
    [
        layout.topic_key("a"),
        layout.topic_key("b"),
        layout.broker_key(BrokerId(1)),
        layout.broker_key(BrokerId(2)),
        layout.config_key(CLUSTER_DEFAULT),
        layout.config_key(BrokerId(1)),
        layout.deletion_key(random_id()),
    ]
)


@given(st.lists(st.tuples(keys, st.none() | st.integers(0, 9)), max_size=20))
def test_following_key_by_key_ends_where_loading_everything_ends(changes):
    tree: dict[str, Versioned] = {}
    image, deletions = ClusterImage("c"), {}
    for key, number in changes:
        tree.pop(key, None)
        entry = None if number is None else tree.setdefault(key, entry_for(key, number))
        image = layout.image_after(image, key, entry)
        deletions = layout.deletions_after(deletions, key, entry)
    assert image == layout.image_of("c", tree)
    assert deletions == layout.deletions_of(tree)


@pytest.mark.parametrize("key", ["topics/a", "brokers/1", "configs/cluster", "configs/broker-1"])
def test_a_key_that_says_what_the_image_knows_gives_the_same_image(key):
    entry = entry_for(key, 1)
    image = layout.image_after(ClusterImage("c"), key, entry)
    assert image != ClusterImage("c")
    assert layout.image_after(image, key, entry) is image


def test_counters_and_marks_are_not_part_of_the_image():
    image = ClusterImage("c")
    for key in (layout.PRODUCER_IDS, layout.CLUSTER, layout.deletion_key(random_id())):
        assert layout.image_after(image, key, Versioned(b"anything", 1)) is image


def test_a_broker_key_that_is_not_a_number_is_an_error_that_shows_it():
    with pytest.raises(UnreadableRecord, match="'one'"):
        layout.image_after(ClusterImage("c"), "brokers/one", entry_for("brokers/1", 1))
