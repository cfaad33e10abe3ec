"""The import contract of ARCHITECTURE.md: a package imports only packages of lower layers, without exception."""

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "skep"

LAYER = {
    "base": 0,
    "wire": 1,
    "records": 2,
    "storage": 3,
    "metadata": 3,
    "client": 3,
    "queue": 4,
    "worker": 4,
    "replication": 4,
    "controller": 4,
    "coordination": 4,
    "security": 4,
    "broker": 5,
    "server": 6,
    "app": 7,
    "broker_process": 7,
    "zookeeper_server": 7,
    "broker_group": 8,
    "embedded": 8,
    "testing": 9,
    "cli": 10,
    "pytest_plugin": 10,
}
FILES = sorted(SOURCE.rglob("*.py"))
SPARK_FILES = sorted((SOURCE.parent / "pyspark_skep").rglob("*.py"))
SPARK_MAY_IMPORT = {"base", "wire", "records", "client"}


def package_of(module: str) -> str:
    return module.split(".")[1]


def imported_packages(tree: ast.AST, package: str) -> set[tuple[str, int]]:
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: imports are absolute"
            names = [node.module or ""]
            if node.module == "skep":
                names = [f"skep.{alias.name}" for alias in node.names]
        else:
            continue
        found |= {(package_of(name), node.lineno) for name in names if name.startswith("skep.")}
    return {(name, line) for name, line in found if name != package}


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_a_package_imports_only_lower_layers(path):
    parts = path.relative_to(SOURCE).with_suffix("").parts
    if parts == ("__init__",):
        return
    package = parts[0]
    for imported, line in imported_packages(ast.parse(path.read_text()), package):
        assert LAYER[imported] < LAYER[package], f"{path}:{line} imports {imported}, which is not below {package}"


@pytest.mark.parametrize("path", SPARK_FILES, ids=lambda path: path.name)
def test_the_data_source_of_spark_imports_only_what_talks_to_a_broker(path):
    for imported, line in imported_packages(ast.parse(path.read_text()), "pyspark_skep"):
        assert imported in SPARK_MAY_IMPORT, f"{path}:{line} imports {imported}"


def test_the_contract_knows_every_package_and_no_other():
    there = {path.stem if path.is_file() else path.name for path in SOURCE.iterdir() if path.name[0] not in "_."}
    assert {name for name in there if name != "py"} == set(LAYER)


def test_a_forbidden_import_is_found():
    tree = ast.parse("from skep.broker import dispatch\nimport skep.base.ids")
    assert imported_packages(tree, "wire") == {("broker", 1), ("base", 2)}


def test_the_contract_leaves_heavy_libraries_out_of_the_broker():
    """What serving needs is imported at start; numpy, pyarrow and the like are not (decision 10 of the design)."""
    import subprocess
    import sys

    heavy = {"numpy", "pyarrow", "numba", "rich", "typer", "confluent_kafka"}
    code = f"import skep.app, sys; print(sorted({heavy} & set(sys.modules)))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
