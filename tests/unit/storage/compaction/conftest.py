"""Compaction with the compiled kernels and with the same kernels as Python."""

from collections.abc import Iterator

import pytest

from tests.kernel_variants import COMPACTION_KERNELS, compacting_with


@pytest.fixture(scope="module", params=list(COMPACTION_KERNELS))
def each_variant(request: pytest.FixtureRequest) -> Iterator[str]:
    """For ``usefixtures``: the tests run once with each."""
    with compacting_with(request.param):
        yield request.param
