"""Records and their bytes."""

import json
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skep.base.errors import StoreUnavailable
from skep.base.ids import BrokerId, LeaderEpoch
from skep.metadata.model import (
    BrokerRecord,
    Endpoint,
    LogReport,
    PartitionRecord,
    TopicRecord,
    UnreadableRecord,
    id_text,
    random_id,
)

broker_ids = st.integers(-1, 2**31 - 1).map(BrokerId)
broker_lists = st.lists(broker_ids, max_size=5).map(tuple)
epochs = st.integers(-1, 2**31 - 1).map(LeaderEpoch)
reports = st.lists(st.builds(LogReport, broker_ids, st.integers(-1), epochs, st.integers(0)), max_size=3).map(tuple)
partitions = st.builds(
    PartitionRecord,
    broker_lists,
    broker_lists,
    broker_ids,
    epochs,
    last_isr=broker_lists,
    reports=reports,
)
topics = st.builds(
    TopicRecord,
    name=st.text(min_size=1),
    topic_id=st.uuids(),
    partitions=st.lists(partitions, max_size=4).map(tuple),
    config=st.dictionaries(st.text(), st.text(), max_size=4),
    version=st.integers(0, 2**63 - 1),
)
brokers = st.builds(
    BrokerRecord, broker_ids, st.text(), st.integers(0, 65535), st.none() | st.text(), st.integers(-1, 2**63 - 1)
)


@given(topics)
def test_a_topic_is_read_back_as_it_was_written(topic):
    assert TopicRecord.decode(topic.name, topic.encode(), topic.version) == topic


@given(brokers)
def test_a_broker_is_read_back_as_it_was_written(broker):
    assert BrokerRecord.decode(broker.id, broker.encode()) == broker


def test_the_written_form_of_a_topic_stays_as_it_is():
    topic = TopicRecord("orders", uuid.UUID(int=5), (PartitionRecord.new([BrokerId(1), BrokerId(2)]),), {"a.b": "c"}, 9)
    written = b'{"v":1,"id":"00000000000000000000000000000005","partitions":[[[1,2],[1,2],1,0]],"config":{"a.b":"c"}}'
    assert topic.encode() == written


def test_what_is_remembered_of_the_last_isr_lies_beside_what_earlier_versions_read():
    led = PartitionRecord.new([BrokerId(1), BrokerId(2)])
    report = LogReport(BrokerId(2), 7, LeaderEpoch(3), 99)
    undecided = led._replace(isr=(), leader=-1, last_isr=(1, 2), reports=(report,))
    topic = TopicRecord("orders", uuid.UUID(int=5), (led, undecided))
    fields = json.loads(topic.encode())
    assert fields["partitions"] == [[[1, 2], [1, 2], 1, 0], [[1, 2], [], -1, 0]]
    assert fields["recovery"] == {"1": [[1, 2], [[2, 7, 3, 99]]]}
    fields["recovery"]["2"] = [[1], []]
    with pytest.raises(UnreadableRecord, match="topic orders: damaged"):
        TopicRecord.decode("orders", json.dumps(fields).encode(), 1)


def test_a_new_partition_is_led_by_its_first_replica_with_all_in_sync():
    partition = PartitionRecord.new([BrokerId(3), BrokerId(1)])
    assert partition == PartitionRecord((3, 1), (3, 1), 3, 0)


def test_a_record_of_a_later_version_is_refused_by_name_and_number():
    written = json.dumps({"v": 2, "id": "x"}).encode()
    with pytest.raises(UnreadableRecord, match=r"topic orders: metadata record of version 2.* reads 1"):
        TopicRecord.decode("orders", written, 1)


@pytest.mark.parametrize(
    "damaged",
    [b"", b"{", b"\xff", b"[]", b"1", b"{}", b'{"v":1}', b'{"v":1,"id":"zz","partitions":[],"config":{}}'],
)
def test_a_damaged_record_is_an_error_of_the_store(damaged):
    with pytest.raises(StoreUnavailable, match="topic orders"):
        TopicRecord.decode("orders", damaged, 1)
    with pytest.raises(StoreUnavailable, match="broker 4"):
        BrokerRecord.decode(BrokerId(4), damaged)


def test_an_id_is_written_as_22_characters_of_base64_as_kafka_does():
    assert id_text(uuid.UUID(int=0)) == "A" * 22
    assert id_text(uuid.UUID(int=1)) == "A" * 20 + "AQ"
    assert id_text(uuid.UUID(bytes=b"\xff" * 16)) == "_" * 21 + "w"


def test_random_ids_have_no_dash_and_do_not_repeat():
    ids = {random_id() for _ in range(2000)}
    assert len(ids) == 2000
    assert not any("-" in id_text(identifier) for identifier in ids)
    assert all(identifier.int > 1 for identifier in ids)


def test_a_broker_has_an_address_for_each_listener():
    endpoints = (Endpoint("INSIDE", "10.0.0.1", 9091), Endpoint("OUTSIDE", "b.example", 9092))
    broker = BrokerRecord(BrokerId(1), "10.0.0.1", 9091, endpoints=endpoints)
    assert BrokerRecord.decode(BrokerId(1), broker.encode()) == broker
    assert broker.at("INSIDE") is broker
    outside = broker.at("OUTSIDE")
    assert outside is not None
    assert (outside.host, outside.port, outside.endpoints) == ("b.example", 9092, endpoints)
    assert broker.at("NOWHERE") is None


def test_a_broker_of_an_earlier_version_has_one_address_for_all():
    old = b'{"v":1,"host":"h","port":9092,"rack":null,"epoch":7,"machine":"m","stopping":false}'
    broker = BrokerRecord.decode(BrokerId(1), old)
    assert broker.endpoints == ()
    assert broker.at("ANY") is broker
