"""The printed documents say what the code says; every API has a handler and a place in COMPATIBILITY.md."""

import ast
import importlib.util
import re
from pathlib import Path

import pytest
from kio.schema.index import api_key_map

from skep.broker.dispatch import HANDLERS
from skep.wire.apis import SERVED, SKEP_COMMAND

_spec = importlib.util.spec_from_file_location("printed_docs", Path(__file__).with_name("printed_docs.py"))
printed_docs = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(printed_docs)

ROOT = Path(__file__).parents[2]
SKEPS_OWN = {SKEP_COMMAND.key: "skep_command"}


@pytest.mark.parametrize("name", printed_docs.PRINTED)
def test_a_printed_document_is_current(name):
    assert (ROOT / "docs" / name).read_text() == printed_docs.PRINTED[name](), "stale: run `make docs`"


def test_every_served_api_has_a_handler_named_after_it():
    assert HANDLERS.keys() == SERVED.keys()
    for key, handler in HANDLERS.items():
        assert handler.__name__.rpartition(".")[2] == (api_key_map | SKEPS_OWN)[key]
        assert handler.__doc__.startswith(f"{SERVED[key].name} (API {key}), version")
        assert callable(handler.handle)
        assert callable(handler.refuse)


def test_every_handler_file_is_in_the_dispatch_table():
    files = {path.stem for path in (ROOT / "src/skep/broker/handlers").glob("*.py")} - {"__init__"}
    assert files == {handler.__name__.rpartition(".")[2] for handler in HANDLERS.values()}


def test_a_handlers_first_line_names_the_versions_of_the_table():
    for key, handler in HANDLERS.items():
        api = SERVED[key]
        numbers = [
            int(n) for n in re.findall(r"\d+", handler.__doc__.split("\n")[0].split("), version")[1].split("(")[0])
        ]
        assert numbers == ([api.oldest, api.newest] if api.oldest != api.newest else [api.oldest]), handler.__name__


def test_a_handlers_head_has_its_behaviour_its_versions_and_its_refusals():
    for handler in HANDLERS.values():
        parts = {line.split()[0].rstrip(",") for line in handler.__doc__.splitlines() if line[:1].isalpha()}
        assert parts >= {"Behaviour", "Versions", "Refusals"}, handler.__name__


def test_every_api_of_kafka_is_served_or_listed_as_absent():
    absent = {int(key) for keys in printed_docs.NOT_SERVED.values() for key in keys.split()}
    assert not absent & SERVED.keys()
    assert api_key_map.keys() <= absent | SERVED.keys()


def test_every_module_says_in_its_first_line_what_lives_there():
    for path in (ROOT / "src").rglob("*.py"):
        docstring = ast.get_docstring(ast.parse(path.read_text()))
        assert docstring, f"{path} has no docstring"


def test_links_between_documents_lead_somewhere():
    for path in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\((?!https?://|#)([^)#]+)", path.read_text()):
            assert (path.parent / target).exists(), f"{path.name} links to {target}"


def test_modules_that_documents_name_exist():
    """``log.py`` stands for any module of that name, ``storage/log/log.py`` for one path."""
    modules = [
        f"/{path.relative_to(ROOT)}" for part in ("src", "tests", "bench") for path in (ROOT / part).rglob("*.py")
    ]
    for path in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]:
        for named in re.findall(r"`([\w./]+\.py)`", path.read_text()):
            assert any(module.endswith(f"/{named}") for module in modules), f"{path.name} names {named}"
