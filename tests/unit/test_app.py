"""How a broker shares out what its process may open."""

import pytest

from skep.app import OTHER_DESCRIPTORS, share_out


@pytest.mark.parametrize(
    ("limit", "max_open_files", "segments", "connections"),
    [
        (1024, 0, 512, 512 - OTHER_DESCRIPTORS),
        (1 << 20, 0, 100_000, (1 << 20) - 100_000 - OTHER_DESCRIPTORS),
        (256, 0, 128, 64),
        (1024, 100, 100, 924 - OTHER_DESCRIPTORS),
        (1024, 5000, 5000, 256),
        (100, 0, 64, 25),
    ],
)
def test_connections_get_what_segments_and_the_rest_leave(limit, max_open_files, segments, connections):
    assert share_out(limit, max_open_files) == (segments, connections)
