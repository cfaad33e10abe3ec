"""The Produce request in parts is, joined, what kio writes."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skep.wire.apis import PRODUCE
from skep.wire.codec import request_class
from skep.wire.produce.produce_request import produce_request_parts
from tests.kio_entities import written

NAMES = st.text("abcdefghij.-é", min_size=1, max_size=150)
PARTITIONS = st.dictionaries(st.integers(0, 2**31 - 1), st.binary(max_size=300), min_size=1, max_size=4)


@pytest.mark.parametrize("version", range(PRODUCE.oldest, PRODUCE.newest + 1))
@given(
    topics=st.dictionaries(NAMES, PARTITIONS, max_size=3),
    transactional_id=st.none() | st.text(max_size=140),
    acks=st.sampled_from((-1, 1)),
    timeout_ms=st.integers(0, 2**31 - 1),
)
def test_the_parts_are_what_kio_writes(
    version: int, topics: dict[str, dict[int, bytes]], transactional_id: str | None, acks: int, timeout_ms: int
) -> None:
    body = {
        "transactional_id": transactional_id,
        "acks": acks,
        "timeout": timedelta(milliseconds=timeout_ms),
        "topic_data": [
            {"name": name, "partition_data": [{"index": index, "records": data} for index, data in partitions.items()]}
            for name, partitions in topics.items()
        ],
    }
    parts = produce_request_parts(
        version,
        {name: list(partitions.items()) for name, partitions in topics.items()},
        transactional_id=transactional_id,
        acks=acks,
        timeout_ms=timeout_ms,
    )
    assert b"".join(parts) == written(request_class(PRODUCE.key, version), body)


def test_the_batches_are_not_copied() -> None:
    batch = bytearray(100)
    parts = produce_request_parts(11, {"t": [(0, batch)]}, transactional_id=None, acks=-1, timeout_ms=1)
    assert any(part is batch for part in parts)
