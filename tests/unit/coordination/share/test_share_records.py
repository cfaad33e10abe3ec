"""The records of ``__share_group_state`` against kio, with the fields of Kafka's message definitions."""

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skep.coordination import schema
from skep.coordination.schema import Layout, int8, int16, int32, int64, layout, nested, string, uuid_
from skep.coordination.share.share_records import (
    ShareSnapshotKey,
    ShareSnapshotValue,
    ShareUpdateKey,
    ShareUpdateValue,
    decode_share_record,
)
from skep.coordination.share.share_state import DeliveryState, Reason, SharePartitionKey, StateBatch

KEY = SharePartitionKey("kitchen", uuid.UUID(int=7), 3)
EMPTY = ShareUpdateValue(0, 0, 0, -1, [])


@layout(kind=0)
class KioSnapshotKey(Layout):
    group_id: str = string()
    topic_id: uuid.UUID | None = uuid_()
    partition: int = int32()


@layout(kind=1)
class KioUpdateKey(Layout):
    group_id: str = string()
    topic_id: uuid.UUID | None = uuid_()
    partition: int = int32()


@layout(flexible=True)
class KioBatch(Layout):
    first_offset: int = int64()
    last_offset: int = int64()
    delivery_state: int = int8()
    delivery_count: int = int16()


@layout(flexible=True)
class KioSnapshotValue(Layout):
    snapshot_epoch: int = int32()
    state_epoch: int = int32()
    leader_epoch: int = int32()
    start_offset: int = int64()
    delivery_complete_count: int = int32(default=-1, tag=0)
    create_timestamp: int = int64()
    write_timestamp: int = int64()
    state_batches: tuple[KioBatch, ...] = nested()


@layout(flexible=True)
class KioUpdateValue(Layout):
    snapshot_epoch: int = int32()
    leader_epoch: int = int32()
    start_offset: int = int64()
    delivery_complete_count: int = int32(default=-1, tag=0)
    state_batches: tuple[KioBatch, ...] = nested()


INT32, INT64 = st.integers(-(1 << 31), (1 << 31) - 1), st.integers(-(1 << 63), (1 << 63) - 1)
INT16 = st.integers(-0x8000, 0x7FFF)
BATCHES = st.lists(
    st.builds(lambda *fields: StateBatch(*fields), INT64, INT64, st.sampled_from(DeliveryState), INT16), max_size=200
)
LONG_BATCHES = st.lists(
    st.builds(
        lambda *fields: StateBatch(*fields),
        INT64,
        INT64,
        st.sampled_from(DeliveryState),
        INT16,
        st.sampled_from([0, 0, 3, -0x8000, 0x7FFF]),
        st.sampled_from([0, 0, 1 << 40, -(1 << 63)]),
        st.sampled_from(Reason),
    ),
    max_size=200,
)
KEYS = st.builds(SharePartitionKey, st.text(max_size=50), st.uuids(), INT32)


def of_kio(batches: list[StateBatch]) -> tuple[KioBatch, ...]:
    return tuple(
        KioBatch(first_offset=first, last_offset=last, delivery_state=state, delivery_count=count)
        for first, last, state, count, *_ in batches
    )


SNAPSHOTS = st.builds(
    lambda *fields: ShareSnapshotValue(*fields), INT32, INT32, INT32, INT64, INT32, INT64, INT64, BATCHES
)


@given(KEYS, SNAPSHOTS)
def test_a_snapshot_has_the_bytes_that_kio_writes(key, value):
    kio_key = KioSnapshotKey(group_id=key.group_id, topic_id=key.topic_id, partition=key.partition)
    names = value._asdict()
    assert names.pop("generation") == 0
    kio_value = KioSnapshotValue(state_batches=of_kio(names.pop("batches")), **names)
    assert (ShareSnapshotKey(key).encode(), value.encode()) == (kio_key.encode(), kio_value.encode())
    assert decode_share_record(kio_key.encode(), kio_value.encode()) == (ShareSnapshotKey(key), value)


@given(KEYS, st.builds(ShareUpdateValue, INT32, INT32, INT64, INT32, BATCHES))
def test_an_update_has_the_bytes_that_kio_writes(key, value):
    kio_key = KioUpdateKey(group_id=key.group_id, topic_id=key.topic_id, partition=key.partition)
    names = value._asdict()
    kio_value = KioUpdateValue(state_batches=of_kio(names.pop("batches")), **names)
    assert (ShareUpdateKey(key).encode(), value.encode()) == (kio_key.encode(), kio_value.encode())
    assert decode_share_record(kio_key.encode(), kio_value.encode()) == (ShareUpdateKey(key), value)


@given(SNAPSHOTS, LONG_BATCHES, INT32)
def test_what_kafka_does_not_have_is_in_tagged_fields(value, batches, generation):
    value = value._replace(batches=batches, generation=generation)
    key = ShareSnapshotKey(KEY)
    assert decode_share_record(key.encode(), value.encode()) == (key, value)
    update = ShareUpdateValue(1, 2, 3, 4, batches)
    assert decode_share_record(ShareUpdateKey(KEY).encode(), update.encode()) == (ShareUpdateKey(KEY), update)


def test_the_private_field_of_a_batch_is_one_that_others_can_skip():
    plain, long = StateBatch(1, 2, DeliveryState.AVAILABLE, 3), StateBatch(1, 2, DeliveryState.AVAILABLE, 3, 4, 5)
    before = EMPTY._replace(batches=[plain]).encode()
    after = EMPTY._replace(batches=[long]).encode()
    tag = bytes([0x90, 0x4E])
    fields = bytes([1]) + tag + bytes([11]) + bytes([0, 4]) + bytes([0, 0, 0, 0, 0, 0, 0, 5]) + bytes([0])
    assert after == before[:-2] + fields + before[-1:]


def test_unknown_tagged_fields_of_a_batch_are_skipped():
    batches = [StateBatch(1, 2, DeliveryState.AVAILABLE, 3), StateBatch(5, 9, DeliveryState.ARCHIVED, 1)]
    value = EMPTY._replace(batches=batches).encode()
    with_another = value[: -2 - 20] + bytes([1, 7, 3, 1, 2, 3]) + value[-1 - 20 :]
    decoded = decode_share_record(ShareUpdateKey(KEY).encode(), with_another)
    assert decoded == (ShareUpdateKey(KEY), EMPTY._replace(batches=batches))


def test_a_tombstone_has_no_value_and_an_unknown_kind_is_skipped():
    assert decode_share_record(ShareSnapshotKey(KEY).encode(), None) == (ShareSnapshotKey(KEY), None)
    assert decode_share_record(b"\x00\x02" + ShareSnapshotKey(KEY).encode()[2:], b"") is None


def test_unknown_tagged_fields_are_skipped():
    value = EMPTY._replace(delivery_complete_count=5).encode()
    assert value[-7:] == bytes([1, 0, 4, 0, 0, 0, 5])
    with_another = value[:-7] + bytes([2]) + value[-6:] + bytes([9, 2, 1, 1])
    decoded = decode_share_record(ShareUpdateKey(KEY).encode(), with_another)
    assert decoded == (ShareUpdateKey(KEY), EMPTY._replace(delivery_complete_count=5))


@given(st.binary(max_size=60))
def test_damaged_bytes_are_a_value_error(data):
    for key, value in ((ShareSnapshotKey(KEY), data), (ShareUpdateKey(KEY), data)):
        try:
            decode_share_record(key.encode(), value)
        except ValueError:
            pass
    try:
        decode_share_record(b"\x00\x00" + data, None)
    except ValueError:
        pass


@pytest.mark.parametrize(
    "damaged",
    [
        EMPTY.encode()[:-1],
        EMPTY.encode() + b"\0",
        b"\x00\x01" + EMPTY.encode()[2:],
        EMPTY.encode()[:-2] + b"\xff\xff\xff\x7f\0",
        EMPTY._replace(batches=[StateBatch(1, 2, 9, 1)]).encode(),  # type: ignore[arg-type]
        EMPTY._replace(batches=[StateBatch(1, 2, DeliveryState.AVAILABLE, 1, 1)]).encode()[:-9],
        EMPTY._replace(batches=[StateBatch(1, 2, DeliveryState.AVAILABLE, 1, 1, 1, 9)]).encode(),  # type: ignore[arg-type]
    ],
    ids=["cut", "longer", "version 1", "more batches than bytes", "unknown state", "cut batch", "unknown reason"],
)
def test_a_damaged_value_is_refused(damaged):
    with pytest.raises(ValueError, match=r"."):
        decode_share_record(ShareUpdateKey(KEY).encode(), damaged)
    assert schema.leading_number(damaged) in (0, 1)
