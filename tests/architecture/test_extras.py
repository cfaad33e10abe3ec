"""What pip installs: a light core, and extras that say how they are installed."""

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
HEAVY = {"numba", "llvmlite", "numpy", "pyarrow", "pandas", "pyspark"}


def names_of(requirements: list[str]) -> set[str]:
    """The packages, those of Skep's own extras included."""
    found = set()
    for requirement in requirements:
        name, extras = re.match(r"([\w-]+)(?:\[([\w,-]+)\])?", requirement).groups()  # type: ignore[union-attr]
        found.add(name)
        if name == PROJECT["name"]:
            found |= names_of([one for extra in extras.split(",") for one in EXTRAS[extra]])
    return found


def test_the_core_is_light() -> None:
    """Decision 15: 80 MB instead of 361."""
    assert names_of(PROJECT["dependencies"]) & HEAVY == set()


@pytest.mark.parametrize("extra", ["arrow", "spark", "dev"])
def test_whoever_reads_columns_has_the_compiler(extra: str) -> None:
    assert names_of(EXTRAS[extra]) >= names_of(EXTRAS["fast"]) | {"numpy", "pyarrow"}


def test_what_messages_recommend_is_an_extra() -> None:
    used = {
        extra
        for path in (ROOT / "src").rglob("*.py")
        for extra in re.findall(r"how_to_install\(['\"](\w+)['\"]\)", path.read_text())
    }
    assert used >= {"arrow", "fast", "spark", "tls", "zookeeper"}
    assert used <= set(EXTRAS)


def test_nobody_is_told_to_install_from_an_index() -> None:
    files = [*(ROOT / "src").rglob("*.py"), *(ROOT / "docs").rglob("*.md")]
    assert [path for path in files if re.search(r"pip install ['\"]?skep\b", path.read_text())] == []
