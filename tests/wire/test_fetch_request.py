"""The Fetch request of a follower is what kio writes."""

from datetime import timedelta
from itertools import groupby
from typing import Any
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from skep.wire.apis import FETCH
from skep.wire.codec import decode_request, request_class
from skep.wire.fetch.fetch_request import VERSION, FollowerPartition, encode_follower_fetch
from tests.kio_entities import written
from tests.wire.kio_bodies import integers

TOPIC_IDS = st.sampled_from([UUID(int=number << 64 | 5) for number in (1, 2, 3)])
NATURAL = st.integers(0, 2**31 - 1)
SAID = FollowerPartition._fields[1:]

positions = st.builds(
    FollowerPartition, TOPIC_IDS, integers(32), integers(32), integers(64), integers(32), integers(64), integers(32)
)


@given(
    partitions=st.lists(positions, max_size=10)
    | st.lists(positions, min_size=1, max_size=1).map(lambda one: one * 200),
    forgotten=st.lists(st.tuples(TOPIC_IDS, integers(32)), max_size=10),
    replica=st.tuples(NATURAL, integers(64)),
    limits=st.tuples(NATURAL, integers(32), integers(32)),
    session=st.tuples(integers(32), integers(32)),
)
def test_it_is_what_kio_writes(
    partitions: list[FollowerPartition],
    forgotten: list[tuple[UUID, int]],
    replica: tuple[int, int],
    limits: tuple[int, int, int],
    session: tuple[int, int],
) -> None:
    # Kio is given what is grouped already.
    partitions.sort()
    forgotten.sort()
    body: dict[str, Any] = {
        "replica_state": {"replica_id": replica[0], "replica_epoch": replica[1]},
        "max_wait": timedelta(milliseconds=limits[0]),
        "min_bytes": limits[1],
        "max_bytes": limits[2],
        "session_id": session[0],
        "session_epoch": session[1],
        "topics": [
            {"topic_id": topic_id, "partitions": [dict(zip(SAID, one[1:], strict=True)) for one in group]}
            for topic_id, group in groupby(partitions, lambda one: one.topic_id)
        ],
        "forgotten_topics_data": [
            {"topic_id": topic_id, "partitions": [index for _, index in group]}
            for topic_id, group in groupby(forgotten, lambda one: one[0])
        ],
    }
    encoded = encode_follower_fetch(
        replica_id=replica[0],
        replica_epoch=replica[1],
        max_wait_ms=limits[0],
        min_bytes=limits[1],
        max_bytes=limits[2],
        session_id=session[0],
        session_epoch=session[1],
        partitions=partitions,
        forgotten=forgotten,
    )
    assert encoded == written(request_class(FETCH.key, VERSION), body)


@given(st.lists(positions, max_size=10))
def test_partitions_in_any_order_are_said_once_by_topic(partitions: list[FollowerPartition]) -> None:
    encoded = encode_follower_fetch(
        replica_id=1,
        replica_epoch=2,
        max_wait_ms=3,
        min_bytes=4,
        max_bytes=5,
        session_id=6,
        session_epoch=7,
        partitions=partitions,
    )
    topics = decode_request(FETCH.key, VERSION, memoryview(encoded), 0).topics
    assert len({topic.topic_id for topic in topics}) == len(topics)
    said = [
        FollowerPartition(topic.topic_id, *(getattr(partition, name) for name in SAID))
        for topic in topics
        for partition in topic.partitions
    ]
    assert sorted(said) == sorted(partitions)
