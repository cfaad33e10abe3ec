"""``--engine duckdb``: queries in DuckDB, inside this process. A topic is read into memory as an Arrow table.

The tables, columns and types are those of the Spark engine. The SQL is DuckDB's, with three settings of Spark: names
may be in backticks, times are UTC, and nulls sort as in Spark (first if ascending).
"""

import re
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from skep.base.extras import how_to_install
from skep.cli.failures import CommandError
from skep.cli.sql.query_text import DUCKDB, in_double_quotes, tables_named

if TYPE_CHECKING:
    from skep.cli.sql.table_catalog import TableCatalog

SETTINGS: dict[str, Any] = {
    "TimeZone": "UTC",
    "default_null_order": "nulls_first_on_asc_last_on_desc",
    # Otherwise a table of a query may be a variable of this program.
    "python_enable_replacements": False,
    # A query must not install anything from the network.
    "autoinstall_known_extensions": False,
}
ROWS_PER_FETCH = 10_000
_NUMBERS = (
    "TINYINT", "SMALLINT", "INTEGER", "BIGINT", "HUGEINT", "UTINYINT", "USMALLINT", "UINTEGER", "UBIGINT", "UHUGEINT",
    "FLOAT", "DOUBLE", "DECIMAL",
)  # fmt: skip
_INTERRUPTED = "Query interrupted"


class _NoPandas:
    """A finder of modules that finds no pandas."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name == "pandas":
            raise ModuleNotFoundError(name, name=name)


def leave_out_pandas() -> None:
    """Lets Arrow do without pandas, which it imports if it can to see whether it is given a value of it: a fifth of the
    time that a small query takes. Whoever wants a DataFrame of Arrow still gets one."""
    import pyarrow as pa

    if "pandas" not in sys.modules:
        finder = _NoPandas()
        sys.meta_path.insert(0, finder)
        try:
            pa.array([0])
        finally:
            sys.meta_path.remove(finder)


class DuckdbResult:
    """The rows of the last query of a connection."""

    def __init__(self, cursor: Any, catalog: "TableCatalog") -> None:
        self._catalog = catalog
        described = [(name, str(kind).partition("(")[0]) for name, kind, *_ in cursor.description or ()]
        self._cursor = cursor
        # Of EXPLAIN only the plan is worth reading; Spark calls it so.
        self._skipped = 1 if [name for name, _ in described] == ["explain_key", "explain_value"] else 0
        self.columns = ["plan"] if self._skipped else [name for name, _ in described]
        self.numbers = [name for name, kind in described if kind in _NUMBERS]

    def first(self, limit: int) -> Sequence[Sequence[Any]]:
        with _Errors(self._catalog):
            return [row[self._skipped :] for row in self._cursor.fetchmany(limit)]

    def rows(self) -> Iterator[Sequence[Any]]:
        while rows := self.first(ROWS_PER_FETCH):
            yield from rows


class DuckdbEngine:
    """A database in memory, which keeps what statements create in it. Each query reads its topics again."""

    dialect = DUCKDB

    def __init__(self, catalog: "TableCatalog") -> None:
        try:
            import duckdb

            # DuckDB needs it for times with a zone, and would say so at the first one.
            import pytz  # type: ignore[import-untyped]  # noqa: F401

            leave_out_pandas()
        except ImportError as error:
            raise CommandError(f"--engine duckdb needs {error.name}: {how_to_install('duckdb')}") from None
        self._catalog = catalog
        self._duckdb = duckdb
        self._connection: Any = duckdb.connect(config=SETTINGS)
        self._views: dict[str, str] = {}

    def prepare(self) -> None:
        """There is nothing to start."""

    def run(self, query: str) -> DuckdbResult:
        sql = in_double_quotes(query)
        names = self._catalog.names()
        with _Errors(self._catalog):
            # Before the topics are read.
            if len(self._duckdb.extract_statements(sql)) != 1:
                raise CommandError("expected one statement; type several in the prompt: skep sql")
        for gone in [name for name, table in self._views.items() if table not in names]:
            # A topic that was deleted: a query must not find what was read of it before.
            self._connection.unregister(gone)
            del self._views[gone]
        tables: dict[str, Any] = {}
        for name, table in tables_named(query, names, DUCKDB).items():
            if table not in tables:
                tables[table] = self._catalog.arrow_table(table)
            self._connection.register(name, tables[table])
            self._views[name] = table
        with _Errors(self._catalog):
            return DuckdbResult(self._connection.execute(sql), self._catalog)

    def attempt(self, work: Callable[[], None]) -> None:
        """Calls ``work``, which runs a query. DuckDB notices Ctrl-C itself."""
        work()

    def forget(self, table: str) -> None:
        """Every query looks for the fields of its topics."""

    def __enter__(self) -> "DuckdbEngine":
        return self

    def __exit__(self, *raised: Any) -> None:
        self._connection.close()


class _Errors:
    """Turns errors of DuckDB into CommandErrors of one line; an unknown table is reported as an unknown topic."""

    def __init__(self, catalog: "TableCatalog") -> None:
        self._catalog = catalog

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: object) -> None:
        import duckdb

        if isinstance(error, RuntimeError) and str(error) == _INTERRUPTED:
            # DuckDB has taken the signal.
            raise KeyboardInterrupt from None
        if isinstance(error, duckdb.Error):
            raise self._told(error) from None

    def _told(self, error: BaseException) -> CommandError:
        text = str(error)
        found = re.search(r'Table with name (?:"([^"]*)"|(\S+)) does not exist', text)
        if found is None:
            paragraph = " ".join(text.partition("\n\n")[0].split())
            return CommandError(re.sub(r"^[A-Z]\w+(?: [A-Z]\w+)* Error: ", "", paragraph))
        name = found[1] or found[2]
        return self._catalog.unknown(name)
