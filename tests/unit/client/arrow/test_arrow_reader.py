from datetime import UTC, datetime, timedelta, timezone

import numpy as np
import pytest

from skep.client.arrow.arrow_reader import _by_partition, _timestamp
from skep.client.errors import ClientError

MIDNIGHT = datetime(2024, 1, 1, tzinfo=UTC)
MIDNIGHT_MS = 1_704_067_200_000


@pytest.mark.parametrize(
    ("microseconds", "milliseconds"), [(0, 0), (1, 1), (400, 1), (1000, 1), (1001, 2), (999_999, 1000), (-1, 0)]
)
def test_the_first_record_at_or_after_a_moment_is_asked_for(microseconds: int, milliseconds: int) -> None:
    assert _timestamp(MIDNIGHT + timedelta(microseconds=microseconds)) == MIDNIGHT_MS + milliseconds


def test_a_moment_is_the_same_in_every_zone() -> None:
    assert _timestamp(MIDNIGHT.astimezone(timezone(timedelta(hours=-7)))) == MIDNIGHT_MS


def test_an_offset_may_come_out_of_a_column() -> None:
    offsets = _by_partition("start", np.int64(5), [0, 1], "earliest")  # type: ignore[arg-type]
    assert offsets == {0: 5, 1: 5}
    assert all(type(offset) is int for offset in offsets.values())
    assert type(_by_partition("start", {0: np.int32(5)}, [0], "earliest")[0]) is int  # type: ignore[dict-item]


def test_what_is_no_place_is_refused() -> None:
    with pytest.raises(ClientError, match="not a position in a topic"):
        _timestamp("somewhere")
