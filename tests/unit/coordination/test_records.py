"""Records of coordinators: what is written can be read, in the bytes that Kafka writes, and damage is told."""

import contextlib
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skep.coordination import group_records as g
from skep.coordination import transaction_records as t

TOPIC_ID = uuid.UUID("00112233-4455-6677-8899-aabbccddeeff")

GROUP_RECORDS = [
    (g.OffsetCommitKey("g", "t", 3), g.OffsetCommitValue(5, -1, "été", 99)),
    (
        g.GroupMetadataKey(group="g"),
        g.GroupMetadataValue(
            protocol_type="consumer",
            generation=4,
            protocol="range",
            leader="m",
            members=(
                g.GroupMemberValue(
                    member_id="m",
                    group_instance_id="i",
                    client_id="c",
                    client_host="/h",
                    session_timeout=10,
                    subscription=b"s",
                    assignment=b"a",
                ),
            ),
        ),
    ),
    (g.ConsumerGroupMetadataKey(group_id="g"), g.ConsumerGroupMetadataValue(epoch=7, metadata_hash=9)),
    (
        g.ConsumerGroupMemberMetadataKey(group_id="g", member_id="m"),
        g.ConsumerGroupMemberMetadataValue(
            client_id="c",
            client_host="/h",
            subscribed_topic_names=("a", "b"),
            classic_member_metadata=g.ClassicMemberMetadata(
                session_timeout_ms=5, supported_protocols=(g.ClassicProtocol(name="range", metadata=b"x"),)
            ),
        ),
    ),
    (
        g.ConsumerGroupTargetAssignmentMetadataKey(group_id="g"),
        g.ConsumerGroupTargetAssignmentMetadataValue(assignment_epoch=3),
    ),
    (
        g.ConsumerGroupTargetAssignmentMemberKey(group_id="g", member_id="m"),
        g.ConsumerGroupTargetAssignmentMemberValue(
            topic_partitions=(g.TargetTopicPartitions(topic_id=TOPIC_ID, partitions=(1, 2)),)
        ),
    ),
    (
        g.ConsumerGroupCurrentMemberAssignmentKey(group_id="g", member_id="m"),
        g.ConsumerGroupCurrentMemberAssignmentValue(
            member_epoch=2,
            previous_member_epoch=1,
            state=1,
            assigned_partitions=(g.CurrentTopicPartitions(topic_id=TOPIC_ID, partitions=(1,), assignment_epochs=(2,)),),
        ),
    ),
    (
        g.ConsumerGroupRegularExpressionKey(group_id="g", regular_expression="a.*"),
        g.ConsumerGroupRegularExpressionValue(topics=("ab",), version=1, timestamp=2),
    ),
    (
        g.ShareGroupMemberMetadataKey(group_id="g", member_id="m"),
        g.ShareGroupMemberMetadataValue(client_id="c", client_host="/h", subscribed_topic_names=("a", "b")),
    ),
    (g.ShareGroupMetadataKey(group_id="g"), g.ShareGroupMetadataValue(epoch=7, metadata_hash=-9)),
    (
        g.ShareGroupTargetAssignmentMetadataKey(group_id="g"),
        g.ShareGroupTargetAssignmentMetadataValue(assignment_epoch=3, assignment_timestamp=5),
    ),
    (
        g.ShareGroupTargetAssignmentMemberKey(group_id="g", member_id="m"),
        g.ShareGroupTargetAssignmentMemberValue(
            topic_partitions=(g.TargetTopicPartitions(topic_id=TOPIC_ID, partitions=(1, 2)),)
        ),
    ),
    (
        g.ShareGroupCurrentMemberAssignmentKey(group_id="g", member_id="m"),
        g.ShareGroupCurrentMemberAssignmentValue(
            member_epoch=2,
            previous_member_epoch=1,
            state=0,
            assigned_partitions=(g.TargetTopicPartitions(topic_id=TOPIC_ID, partitions=(1,)),),
        ),
    ),
    (
        g.ShareGroupStatePartitionMetadataKey(group_id="g"),
        g.ShareGroupStatePartitionMetadataValue(
            initializing_topics=(g.StateTopicPartitions(topic_id=TOPIC_ID, topic_name="t", partitions=(2,)),),
            initialized_topics=(g.StateTopicPartitions(topic_id=TOPIC_ID, topic_name="t", partitions=(0, 1)),),
            deleting_topics=(g.StateTopic(topic_id=TOPIC_ID, topic_name="t"),),
        ),
    ),
]


@pytest.mark.parametrize(("key", "value"), GROUP_RECORDS, ids=lambda part: type(part).__name__)
def test_what_is_written_of_a_group_can_be_read(key, value):
    assert g.decode_group_record(key.encode(), value.encode()) == (key, value)
    assert g.decode_group_record(key.encode(), None) == (key, None)


def test_what_is_written_of_a_transaction_can_be_read():
    key = t.TransactionLogKey(transactional_id="x")
    value = t.TransactionLogValue(
        producer_id=1,
        producer_epoch=2,
        transaction_timeout_ms=3,
        transaction_status=4,
        transaction_partitions=(t.TransactionPartitions(topic="t", partition_ids=(1, 5)),),
        transaction_last_update_timestamp_ms=6,
        transaction_start_timestamp_ms=7,
    )
    assert t.decode_transaction_record(key.encode(), value.encode()) == (key, value)


def test_the_bytes_are_those_that_kafka_writes():
    assert g.OffsetCommitKey("g", "t", 3).encode().hex() == "000100016700017400000003"
    value = g.OffsetCommitValue(5, -1, "m", 99).encode()
    assert value.hex() == "00030000000000000005ffffffff00016d0000000000000063"
    assert g.GroupMetadataKey(group="g").encode().hex() == "0002000167"
    member = g.ConsumerGroupMemberMetadataValue(
        client_id="c",
        client_host="h",
        classic_member_metadata=g.ClassicMemberMetadata(session_timeout_ms=5, supported_protocols=()),
    )
    # One tagged field, number 0, of 7 bytes: there it is (KIP-893), the timeout, no protocols, no tags.
    assert member.encode().hex().endswith("01000701000000050100")


def test_the_bytes_of_share_groups_are_those_that_kafka_writes():
    assert g.ShareGroupMemberMetadataKey(group_id="g", member_id="m").encode().hex() == "000a00016700016d"
    assert g.ShareGroupMetadataKey(group_id="g").encode().hex() == "000b000167"
    # The hash is not tagged, as it is in the record of a consumer group.
    assert g.ShareGroupMetadataValue(epoch=1, metadata_hash=2).encode().hex() == "000000000001000000000000000200"
    assert g.ShareGroupTargetAssignmentMetadataValue(assignment_epoch=1).encode().hex() == "00000000000100"
    states = g.ShareGroupStatePartitionMetadataValue(
        initialized_topics=(g.StateTopicPartitions(topic_id=TOPIC_ID, topic_name="t", partitions=(1,)),)
    )
    assert g.ShareGroupStatePartitionMetadataKey(group_id="g").encode().hex() == "000f000167"
    assert states.encode().hex() == f"0000 01 02{TOPIC_ID.hex} 0274 0200000001 00 01 00".replace(" ", "")


def test_older_and_newer_versions_of_an_offset_are_read():
    key = g.OffsetCommitKey("g", "t", 3).encode()
    version_1 = bytes.fromhex("0001000000000000000500016d00000000000000630000000000000064")
    assert g.decode_group_record(key, version_1)[1] == g.OffsetCommitValue(5, -1, "m", 99)
    version_4 = bytes.fromhex("0004000000000000000500000002026d000000000000006300")
    assert g.decode_group_record(key, version_4)[1] == g.OffsetCommitValue(5, 2, "m", 99)


def test_a_record_of_a_kind_that_is_not_known_is_passed_over():
    assert g.decode_group_record(b"\x00\x63abc", b"whatever") is None
    assert t.decode_transaction_record(b"\x00\x09abc", b"whatever") is None


@given(st.sampled_from(GROUP_RECORDS), st.data())
def test_a_record_that_is_cut_off_is_a_value_error(record, data):
    key, value = record[0].encode(), record[1].encode()
    cut = data.draw(st.integers(0, len(key) - 1))
    with pytest.raises(ValueError):
        g.decode_group_record(key[:cut], value)


@given(st.sampled_from(GROUP_RECORDS), st.data())
def test_a_record_with_other_bytes_in_it_gives_a_record_or_a_value_error(record, data):
    """Lengths above all: kio would allocate whatever they say."""
    huge = [b"\xff\xff\xff\xff\x0f", b"\x7f\xff\xff\xff", b"\0"]
    parts = [bytearray(part.encode()) for part in record]
    for part in parts:
        for _ in range(data.draw(st.integers(0, 3))):
            place = data.draw(st.integers(2, len(part) - 1)) if len(part) > 2 else 0
            part[place : place + 5] = data.draw(st.sampled_from(huge))
    with contextlib.suppress(ValueError):
        g.decode_group_record(bytes(parts[0]), bytes(parts[1]))


def test_a_length_that_the_bytes_do_not_back_is_a_value_error():
    key = g.ConsumerGroupRegularExpressionKey(group_id="g", regular_expression="a").encode()
    with pytest.raises(ValueError, match="ConsumerGroupRegularExpressionValue"):
        g.decode_group_record(key, b"\0\0" + b"\xff\xff\xff\xff\x0f" + bytes(16))


def test_a_value_of_a_version_that_is_not_known_is_a_value_error():
    key, value = g.GroupMetadataKey(group="g").encode(), GROUP_RECORDS[1][1].encode()
    with pytest.raises(ValueError, match="version 4"):
        g.decode_group_record(key, b"\0\4" + value[2:])


@given(st.binary(max_size=40), st.one_of(st.none(), st.binary(max_size=60)))
def test_any_bytes_give_a_record_or_a_value_error(key, value):
    for decode in (g.decode_group_record, t.decode_transaction_record):
        try:
            decode(key, value)
        except ValueError:
            pass
