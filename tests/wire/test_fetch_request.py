"""The hand-written encoding of Fetch requests is what kio writes."""

from datetime import timedelta
from itertools import groupby
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skep.wire.apis import FETCH
from skep.wire.codec import decode_request, request_class
from skep.wire.fetch.fetch_request import NO_REPLICA, FetchPosition, encode_fetch_request
from tests.kio_entities import written
from tests.wire.kio_bodies import integers

TOPIC_IDS = st.sampled_from([UUID(int=number << 64 | 5) for number in (1, 2, 3)])
NATURAL = st.integers(0, 2**31 - 1)
SAID = FetchPosition._fields[1:]
VERSION = 17
VERSIONS = range(FETCH.oldest, FETCH.newest + 1)
NAMES = {UUID(int=number << 64 | 5): f"topic-{number}" for number in (1, 2, 3)}

positions = st.builds(
    FetchPosition, TOPIC_IDS, integers(32), integers(32), integers(64), integers(32), integers(64), integers(32)
)


@pytest.mark.parametrize("version", VERSIONS)
@given(
    partitions=st.lists(positions, max_size=10)
    | st.lists(positions, min_size=1, max_size=1).map(lambda one: one * 200),
    forgotten=st.lists(st.tuples(TOPIC_IDS, integers(32)), max_size=10),
    replica=st.tuples(st.just(NO_REPLICA), st.just(-1)) | st.tuples(NATURAL, integers(64)),
    limits=st.tuples(NATURAL, integers(32), integers(32), st.sampled_from((0, 1))),
    session=st.tuples(integers(32), integers(32)),
)
def test_it_is_what_kio_writes(
    version: int,
    partitions: list[FetchPosition],
    forgotten: list[tuple[UUID, int]],
    replica: tuple[int, int],
    limits: tuple[int, int, int, int],
    session: tuple[int, int],
) -> None:
    def named(topic_id: UUID) -> dict[str, Any]:
        return {"topic_id": topic_id, "topic": NAMES[topic_id]}

    # Kio is given what is grouped already.
    partitions.sort()
    forgotten.sort()
    body: dict[str, Any] = {
        "replica_id": replica[0],
        "replica_state": {"replica_id": replica[0], "replica_epoch": replica[1]},
        "max_wait": timedelta(milliseconds=limits[0]),
        "min_bytes": limits[1],
        "max_bytes": limits[2],
        "isolation_level": limits[3],
        "session_id": session[0],
        "session_epoch": session[1],
        "topics": [
            {**named(topic_id), "partitions": [dict(zip(SAID, one[1:], strict=True)) for one in group]}
            for topic_id, group in groupby(partitions, lambda one: one.topic_id)
        ],
        "forgotten_topics_data": [
            {**named(topic_id), "partitions": [index for _, index in group]}
            for topic_id, group in groupby(forgotten, lambda one: one[0])
        ],
    }
    encoded = encode_fetch_request(
        version,
        replica_id=replica[0],
        replica_epoch=replica[1],
        max_wait_ms=limits[0],
        min_bytes=limits[1],
        max_bytes=limits[2],
        isolation_level=limits[3],
        session_id=session[0],
        session_epoch=session[1],
        partitions=partitions,
        forgotten=forgotten,
        topic_names=NAMES,
    )
    assert encoded == written(request_class(FETCH.key, version), body)


@given(st.lists(positions, max_size=10))
def test_partitions_in_any_order_are_said_once_by_topic(partitions: list[FetchPosition]) -> None:
    encoded = encode_fetch_request(
        VERSION,
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
        FetchPosition(topic.topic_id, *(getattr(partition, name) for name in SAID))
        for topic in topics
        for partition in topic.partitions
    ]
    assert sorted(said) == sorted(partitions)
