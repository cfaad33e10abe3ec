"""The records of ``__transaction_state`` in Kafka's layout: one kind, with the whole state of a transactional id."""

from typing import Any

from skep.coordination import schema
from skep.coordination.schema import Layout, int8, int16, int32, int64, layout, nested, string


@layout(kind=0)
class TransactionLogKey(Layout):
    transactional_id: str = string()


@layout(version=1, flexible=True)
class TransactionPartitions(Layout):
    topic: str = string()
    partition_ids: tuple[int, ...] = int32(default=())


@layout(version=1, flexible=True)
class TransactionLogValue(Layout):
    """``transaction_status`` is Kafka's number of the state; ``transaction_partitions`` is None without partitions."""

    producer_id: int = int64()
    previous_producer_id: int = int64(default=-1, tag=0)
    next_producer_id: int = int64(default=-1, tag=1)
    producer_epoch: int = int16()
    next_producer_epoch: int = int16(default=-1, tag=3)
    transaction_timeout_ms: int = int32()
    transaction_status: int = int8()
    transaction_partitions: tuple[TransactionPartitions, ...] | None = nested(default=None)
    transaction_last_update_timestamp_ms: int = int64()
    transaction_start_timestamp_ms: int = int64()
    client_transaction_version: int = int16(default=0, tag=2)


_LAST_WRITTEN_STATUS = 5
"""Kafka has numbers for two more states, which it never writes."""


def decode_transaction_record(key: bytes, value: bytes | None) -> tuple[Any, Any] | None:
    """Returns a key and its value (None for a tombstone), or None for an unknown kind. Raises ValueError for damaged
    bytes."""
    if schema.leading_number(key) != 0:
        return None
    decoded = schema.decode(TransactionLogKey, key)
    if value is None:
        return decoded, None
    if (version := schema.leading_number(value)) != TransactionLogValue.__version__:
        raise ValueError(f"transaction record of version {version}, expected {TransactionLogValue.__version__}")
    state = schema.decode(TransactionLogValue, value)
    if not 0 <= state.transaction_status <= _LAST_WRITTEN_STATUS:
        raise ValueError(
            f"transaction record with state {state.transaction_status}, expected 0 to {_LAST_WRITTEN_STATUS}"
        )
    return decoded, state
