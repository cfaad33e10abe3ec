"""Handlers read bodies whose types mypy knows, and write fields that their responses have."""

import ast
import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest

from skep.broker.dispatch import HANDLERS
from skep.wire.apis import SERVED
from skep.wire.codec import response_class
from skep.wire.entities.entity_fields import fields_of

ROOT = Path(__file__).parents[2]
BROKER = ROOT / "src" / "skep" / "broker"

_spec = importlib.util.spec_from_file_location("printed_types", Path(__file__).with_name("printed_types.py"))
printed_types = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(printed_types)

JSON = ("commands", "worker")
"""Rooms that have JSON, of the private API and of the worker process, and no bodies."""
READS_BODIES = [path for path in sorted(BROKER.rglob("*.py")) if path.parent.name not in JSON]
UNTYPED = {
    "acknowledgements.py": "has the structures of two APIs, ShareFetch and ShareAcknowledge, which are alike",
    "config_changes.py": "has requests of two APIs, AlterConfigs and IncrementalAlterConfigs, and types of bodies",
    "config_entries.py": "has requests of three APIs, and reads no body",
    "dispatch.py": "has requests of every API, and reads no body",
    "fencing.py": "reads only the version of a request",
    "mutation_quota.py": "reads the version and the throttle of a request, but not its body",
    "permissions.py": "has requests of every API; a test of the table checks the fields that it reads",
    "quota_gate.py": "has requests of every API, and reads the body of a Fetch only",
    "request.py": "declares AnyRequest",
}
"""Modules that may name AnyRequest, and why."""

NOT_FIELDS = {
    "AlterUserScramCredentials": {"mechanisms", "altered"},  # of the audit
    "ApiVersions": {"transaction.version", "share.version"},  # features
    "DescribeConfigs": {""},  # the resource that stands for all brokers
    "Produce": {"uncompressed"},  # a value of compression.type
    "SkepCommand": {
        "altered",  # of the audit
        *(
            "alter_plain_user",
            "check_access",
            "commands",
            "delay",
            "deliveries",
            "end_members",
            "plain_users",
            "renew",
            "reopen",
        ),
        "topic_needs",
    },
}
"""Keys of other dictionaries in the handler of an API."""


def test_the_printed_types_are_current() -> None:
    assert printed_types.PRINTED.read_text() == printed_types.request_types(), "stale: run `make types`"


@pytest.mark.parametrize("key", HANDLERS, ids=lambda key: SERVED[key].name)
def test_a_handler_names_the_type_of_its_body(key: int) -> None:
    tree = ast.parse(Path(HANDLERS[key].__file__).read_text())
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
    aliases = {
        target.id: ast.unparse(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and isinstance(target := node.targets[0], ast.Name)
    }
    for name in ("handle", "refuse"):
        [request] = [arg for arg in functions[name].args.args if arg.arg == "request"]
        hint = ast.literal_eval(request.annotation)
        assert f"Request[{SERVED[key].name}Request" in aliases.get(hint, hint), f"{name} takes {hint}"


@pytest.mark.parametrize("path", READS_BODIES, ids=lambda path: path.stem)
def test_no_parameter_is_a_body_or_a_part_of_one_as_any(path: Path) -> None:
    if path.name not in UNTYPED:
        assert untyped_parameters(ast.parse(path.read_text())) == []


def untyped_parameters(tree: ast.AST) -> list[str]:
    """Returns the parameters that are Any, several Any, or a request of any API."""
    return [
        f"{node.arg} in line {node.lineno}"
        for node in ast.walk(tree)
        if isinstance(node, ast.arg)
        and node.annotation is not None
        and re.fullmatch(r"AnyRequest|((Iterable|Sequence)\[)?Any\]?( \| None)?", ast.unparse(node.annotation))
    ]


def test_an_untyped_parameter_is_found() -> None:
    tree = ast.parse(
        "def f(a: Any, b: int, c: Sequence[Any] | None): ...\ndef g(r: AnyRequest, d: dict[str, Any]): ..."
    )
    assert untyped_parameters(tree) == ["a in line 1", "c in line 1", "r in line 2"]


@pytest.mark.parametrize("path", READS_BODIES, ids=lambda path: path.stem)
def test_getattr_reads_only_fields_that_some_version_lacks(path: Path) -> None:
    """mypy does not look at the names that getattr gets."""
    partial = set(re.findall(r"^ +(\w+): .*  # \d", printed_types.PRINTED.read_text(), re.M))
    calls = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
    names = {
        call.args[1].value
        for call in calls
        if isinstance(call.func, ast.Name) and call.func.id in ("getattr", "hasattr")
    }
    assert names <= partial


@pytest.mark.parametrize("key", HANDLERS, ids=lambda key: SERVED[key].name)
def test_a_handler_writes_only_fields_of_its_response(key: int) -> None:
    """The encoder leaves out what is no field of the version, so it would not notice a name that is wrong."""
    api = SERVED[key]
    fields = set.union(*(field_names(response_class(key, version)) for version in range(api.oldest, api.newest + 1)))
    written = {
        one.value
        for node in ast.walk(ast.parse(Path(HANDLERS[key].__file__).read_text()))
        if isinstance(node, ast.Dict)
        for one in node.keys
        if isinstance(one, ast.Constant) and isinstance(one.value, str)
    }
    assert written - fields == NOT_FIELDS.get(api.name, set())


def field_names(entity: Any) -> set[str]:
    fields = list(fields_of(entity))
    return {field.name for field in fields}.union(*(field_names(field.nested) for field in fields if field.nested))
