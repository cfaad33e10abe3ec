"""The modules of ``src/`` and their imports, as the tests of the architecture read them."""

import ast
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src"


@cache
def modules() -> Mapping[str, Path]:
    """Every module and package by its dotted name."""
    found = {}
    for path in sorted(SOURCE.rglob("*.py")):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@cache
def imports() -> Mapping[str, frozenset[str]]:
    """The modules of ours that each one imports, also behind TYPE_CHECKING and inside functions."""
    known = frozenset(modules())
    return {name: imported_by(ast.parse(path.read_text()), known) - {name} for name, path in modules().items()}


def imported_by(tree: ast.AST, known: frozenset[str]) -> frozenset[str]:
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            inner = {f"{node.module}.{alias.name}" for alias in node.names}
            names |= inner & known
            if inner - known:
                names.add(node.module)
    return known & names


Function = ast.FunctionDef | ast.AsyncFunctionDef


def functions() -> Iterator[tuple[str, Function]]:
    """Every function and method by its dotted name, also those inside functions."""
    for module, path in modules().items():
        yield from _functions_in(module, ast.parse(path.read_text()))


def _functions_in(name: str, tree: ast.AST) -> Iterator[tuple[str, Function]]:
    for node in ast.iter_child_nodes(tree):
        is_named = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        inner = f"{name}.{node.name}" if is_named else name
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield inner, node
        yield from _functions_in(inner, node)


@cache
def classes() -> dict[str, tuple[int, tuple[str, ...]]]:
    """The number of lines of every class at the top of a module, and the classes that it inherits from."""
    found = {}
    for module, path in modules().items():
        tree = ast.parse(path.read_text())
        known = {
            alias.asname or alias.name: f"{node.module}.{alias.name}"
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
        }
        tops = [node for node in tree.body if isinstance(node, ast.ClassDef)]
        known |= {node.name: f"{module}.{node.name}" for node in tops}
        for node in tops:
            bases = [ast.unparse(base).partition("[")[0] for base in node.bases]
            size = (node.end_lineno or 0) - node.lineno + 1
            found[f"{module}.{node.name}"] = (size, tuple(known.get(base, base) for base in bases))
    return found


def cycles(graph: Mapping[str, frozenset[str]]) -> list[list[str]]:
    """Groups of nodes that reach each other (Tarjan's strongly connected components with more than one node)."""
    order: dict[str, int] = {}
    lowest: dict[str, int] = {}
    path: list[str] = []
    found: list[list[str]] = []

    def visit(node: str) -> None:
        order[node] = lowest[node] = len(order)
        path.append(node)
        for other in graph.get(node, ()):
            if other not in order:
                visit(other)
                lowest[node] = min(lowest[node], lowest[other])
            elif other in path:
                lowest[node] = min(lowest[node], order[other])
        if lowest[node] == order[node]:
            cut = path.index(node)
            if len(component := path[cut:]) > 1:
                found.append(sorted(component))
            del path[cut:]

    for node in graph:
        if node not in order:
            visit(node)
    return found


def rooms(graph: Mapping[str, frozenset[str]]) -> Iterator[tuple[str, str, tuple[str, str]]]:
    """For each import, the two rooms it joins, and the import itself.

    A room is a module or a sub-package. The two rooms of an import stand in the same package: the deepest one that
    holds both modules.
    """
    for importer, imported in graph.items():
        for other in imported:
            ours, theirs = importer.split("."), other.split(".")
            depth = next((i for i, pair in enumerate(zip(ours, theirs, strict=False)) if pair[0] != pair[1]), None)
            if depth is not None:
                yield ".".join(ours[: depth + 1]), ".".join(theirs[: depth + 1]), (importer, other)
