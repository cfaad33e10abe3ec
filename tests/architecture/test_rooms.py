"""The rooms of the tree: no import cycles inside a package, no fragments, no overlong files, nouns as names."""

from collections import Counter

from tests.architecture.source_modules import cycles, imports, modules, rooms

LONGEST = 600
TABLES = {"skep.wire.entities.request_types": "printed: the fields of every request"}
"""Longer than LONGEST, and one table each."""

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
