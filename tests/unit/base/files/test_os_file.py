"""What a file says about the page cache, with a page cache of our own making."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from skep.base.files.os_file import OsFile
from skep.base.files.os_files import OsFiles

PAGE = 4096


@pytest.fixture
def file(tmp_path: Path) -> OsFile:
    file = OsFiles().open(str(tmp_path / "eggs"), create=True)
    file.append((bytes(64 * PAGE),))
    return file


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch) -> Callable[[set[int]], None]:
    """Makes it so that the pages of these numbers are in the page cache and no others."""

    def cache(pages: set[int]) -> None:
        def preadv(descriptor: int, buffers: object, position: int, flags: int) -> int:
            if position // PAGE not in pages:
                raise BlockingIOError
            return 1

        monkeypatch.setattr(os, "preadv", preadv)

    return cache


def test_the_pages_at_the_ends_do_not_stand_for_a_region(file: OsFile, cache: Callable[[set[int]], None]) -> None:
    # Finding a slice reads the header that it begins with and the one that follows it, in the page where it ends.
    cache({2, 18})
    assert not file.is_cached(2 * PAGE + 100, 16 * PAGE)


@pytest.mark.parametrize("cached", [range(2, 10), range(10, 19)], ids=["its end", "its beginning"])
def test_a_region_is_cold_when_one_half_of_it_is(
    file: OsFile, cache: Callable[[set[int]], None], cached: range
) -> None:
    cache(set(cached))
    assert not file.is_cached(2 * PAGE + 100, 16 * PAGE)


@pytest.mark.parametrize("size", [1, 61, PAGE, 2 * PAGE, 2 * PAGE + 1, 16 * PAGE])
def test_a_region_is_cached_when_all_its_pages_are(file: OsFile, cache: Callable[[set[int]], None], size: int) -> None:
    position = 2 * PAGE
    cache(set(range(position // PAGE, (position + size - 1) // PAGE + 1)))
    assert file.is_cached(position, size)
