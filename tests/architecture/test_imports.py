"""Code that no test runs (the benchmarks, the long runs) still imports only names that exist."""

import ast
import importlib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = [
    path
    for directory in ("bench", "pipelines", "tests/fuzz", "tests/torture", "tests/explore")
    for path in sorted(ROOT.joinpath(directory).rglob("*.py"))
]
OURS = ("bench", "pipelines", "pyspark_skep", "skep", "tests")


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_imported_name_of_ours_exists(path: Path) -> None:
    for module, name in _imported_names(path):
        if not hasattr(importlib.import_module(module), name):
            importlib.import_module(f"{module}.{name}")  # raises when it is no module either


def _imported_names(path: Path) -> Iterator[tuple[str, str]]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] in OURS:
            for alias in node.names:
                yield node.module, alias.name
