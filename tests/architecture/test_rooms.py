"""The rooms of the tree: no import cycles inside a package, no fragments, no overlong files, nouns as names."""

import ast
from collections import Counter

from tests.architecture.source_modules import Function, classes, cycles, functions, imports, modules, rooms

LONGEST = 600
TABLES = {"skep.wire.entities.request_types": "printed: the fields of every request"}
"""Longer than LONGEST, and one table each."""

LONG = 400
LONG_FILES = {
    "skep.base.config.security_config": "a table of options",
    "skep.server.connection": "one state machine: what is received, waits, is muted, and is sent in order",
    "skep.app": "composition: the order in which the parts of a broker start and stop",
    "skep.broker.handlers.fetch": "one API; its head alone has fifty lines",
    "skep.broker.handlers.produce": "one API, and the hot path: from the request to the append without an await",
    "skep.broker.handlers.share_fetch": "one API: acquiring, waiting and acknowledging in one request",
    "skep.broker.share.share_partition": "one state machine: loading, acquiring, acknowledging and ending",
    "skep.coordination.share.delivery_runs": "one data structure, with its invariants",
    "skep.coordination.share.share_window": "the rules of one window; its parts are modules beside it",
    "skep.metadata.catalog": "one method for each kind of change, all under one lock",
    "skep.records.columnar.columnar_kernels": "compiled loops; those that call each other share a cache file",
    "skep.replication.partition.partition": "the high watermark and all that waits for it, without an await",
    "skep.replication.replica_manager": "the front of replication; half of it delegates",
    "skep.storage.compaction.kernels": "compiled loops, as in columnar_kernels",
    "skep.storage.directory.log_directory": "the life of a data directory: opened, locked, closed, failed",
}
"""Longer than LONG, and why it is one file."""

LONGEST_FUNCTION = 60
LONG_FUNCTIONS = {
    "skep.app.Broker._start": "composition: the order in which the parts start",
    "skep.client.arrow.arrow_writer.write_arrow": "half of it is the docstring of a public function",
    "skep.broker.cluster.coordinators.Coordinators.__init__": "composition: each statement makes one part",
}
"""Longer than LONGEST_FUNCTION, and why."""

LONGEST_COMMAND = 30
"""Lines of code of a command of the CLI. Its signature is the table of its options, its docstring the help."""

SHORT = 40
FEW_IMPORTERS = {
    "skep.records.columnar.aborted_transactions": "the rule of Kafka's consumer, apart from the decoding of bytes",
    "skep.records.record_ttl": "a header with a meaning of Skep's own, apart from the format of records",
    "skep.worker.__main__": "the table of jobs, and what Python runs",
}
"""Shorter than SHORT with fewer than two importers, and why it stands alone."""

ONE_FILE_EACH = ("skep.broker.handlers.", "skep.broker.commands.", "skep.coordination.groups.assignors.")
"""Packages whose layout is one file for each API, command or assignor, however short."""

# Names in -ing, and why they stay.
GERUNDS = {
    "skep.testing": "public: what tests of users import",
    "pyspark_skep.parsing": "public: what pipelines of users import",
    "skep.broker.fencing": "Kafka's word for it",
    "skep.coordination.transactions.transaction_listing": "a listing is a list",
    "skep.replication.housekeeping": "a noun",
}


def test_no_modules_import_each_other() -> None:
    found = cycles(imports())
    assert not found, "\n".join(map(" ".join, found))


def test_no_rooms_import_each_other() -> None:
    between: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for room, other, how in rooms(imports()):
        between.setdefault((room, other), []).append(how)
    mutual = sorted(pair for pair in between if pair[::-1] in between)
    found = [f"{importer} imports {other}" for pair in mutual for importer, other in between[pair]]
    assert not found, "\n".join(found)


def test_no_file_is_longer_than_a_reader_can_hold() -> None:
    lines = {name: len(path.read_text().splitlines()) for name, path in modules().items() if name not in TABLES}
    assert {name: count for name, count in lines.items() if count > LONGEST} == {}


def test_a_long_file_has_a_reason_to_be_one() -> None:
    lines = {name: len(path.read_text().splitlines()) for name, path in modules().items() if name not in TABLES}
    assert {name: count for name, count in lines.items() if count > LONG and name not in LONG_FILES} == {}
    assert not [name for name in LONG_FILES if lines.get(name, 0) <= LONG], "it needs no reason any more"


def test_classes_that_inherit_count_together() -> None:
    """A class in several files is as hard to read as one long file."""
    sizes = {name: _together(name, classes()) for name in classes()}
    long = {name: size for name, size in sizes.items() if size > LONG and name.rpartition(".")[0] not in LONG_FILES}
    assert long == {}
    assert max(sizes.values()) <= LONGEST


def test_functions_are_short_or_have_a_reason() -> None:
    long = {}
    for name, function in functions():
        size = _code_lines(function) if _is_command(function) else _lines(function)
        if size > (LONGEST_COMMAND if _is_command(function) else LONGEST_FUNCTION):
            long[name] = size
    assert {name: size for name, size in long.items() if name not in LONG_FUNCTIONS} == {}
    assert not LONG_FUNCTIONS.keys() - long.keys(), "it needs no reason any more"


def _together(name: str, known: dict[str, tuple[int, tuple[str, ...]]]) -> int:
    """The lines of a class and of all classes of ours that it inherits from."""
    counted: set[str] = set()
    waiting = [name]
    while waiting:
        one = waiting.pop()
        if one in known and one not in counted:
            counted.add(one)
            waiting += known[one][1]
    return sum(known[one][0] for one in counted)


def _lines(function: Function) -> int:
    return (function.end_lineno or 0) - function.lineno + 1


def _code_lines(function: Function) -> int:
    """The lines after the signature and the docstring."""
    code = function.body[1:] if ast.get_docstring(function) is not None else function.body
    return (function.end_lineno or 0) - code[0].lineno + 1 if code else 0


def _is_command(function: Function) -> bool:
    """Whether its parameters are options of typer."""
    annotations = [one.annotation for one in (*function.args.args, *function.args.kwonlyargs) if one.annotation]
    return any("typer." in ast.unparse(annotation) for annotation in annotations)


def test_lines_of_bases_and_of_code_are_counted() -> None:
    known = {"a.X": (10, ("a.Y",)), "a.Y": (20, ("a.Z", "object")), "a.Z": (30, ())}
    assert _together("a.X", known) == 60
    command = ast.parse("def f(\n x: Annotated[int, typer.Option()],\n):\n 'help'\n a = 1\n return a").body[0]
    assert isinstance(command, ast.FunctionDef)
    assert (_is_command(command), _lines(command), _code_lines(command)) == (True, 6, 2)


def test_a_short_module_has_two_importers_or_a_reason() -> None:
    importers = Counter(other for imported in imports().values() for other in imported)
    short = [name for name, path in modules().items() if len(path.read_text().splitlines()) < SHORT]
    alone = {name for name in short if importers[name] < 2 and modules()[name].name != "__init__.py"}
    alone -= {name for name in alone if name.startswith(ONE_FILE_EACH)}
    assert not alone - FEW_IMPORTERS.keys(), "\n".join(sorted(alone - FEW_IMPORTERS.keys()))


def test_modules_are_nouns() -> None:
    found = {name for name in modules() if name.endswith("ing")}
    assert not found - GERUNDS.keys(), "\n".join(sorted(found - GERUNDS.keys()))


def test_a_cycle_is_found() -> None:
    graph = {
        "a.x": frozenset({"a.y"}),
        "a.y": frozenset({"a.z.w"}),
        "a.z.w": frozenset({"a.x"}),
        "a.v": frozenset({"a.x"}),
    }
    assert cycles(graph) == [["a.x", "a.y", "a.z.w"]]


def test_the_rooms_of_an_import_stand_in_the_same_package() -> None:
    assert list(rooms({"s.a.x": frozenset({"s.b.y"})})) == [("s.a", "s.b", ("s.a.x", "s.b.y"))]
    assert list(rooms({"s.a.x": frozenset({"s.a.y"})})) == [("s.a.x", "s.a.y", ("s.a.x", "s.a.y"))]
    assert list(rooms({"s.a.x": frozenset({"s.a"})})) == []
