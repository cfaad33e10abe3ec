"""The prompt of ``skep sql``: statements that end with a semicolon, and commands that begin with a backslash.

A statement may have several lines. From a pipe the same is read, without a prompt.

The lines are edited by Python's readline, if standard input and output are a terminal. Ctrl-C discards the line, or
cancels the query; Ctrl-D ends. In a prompt an error is printed and the prompt goes on; from a pipe it ends the command.
"""

import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Protocol

from skep.cli import output
from skep.cli.failures import CommandError
from skep.cli.sql.query_result import QueryResult
from skep.cli.sql.query_text import Dialect, is_blank, statements, tables_named

if TYPE_CHECKING:
    from skep.cli.sql.line_editor import LineEditor
    from skep.cli.sql.table_catalog import TableCatalog

ENDS = (["exit"], ["quit"])
FIRST, FURTHER = "skep> ", "   -> "
GREETING = "SQL ends with ; and \\? shows help. Ctrl-D ends."
HELP = """\
SELECT ...;       a query, also on several lines; EXPLAIN SELECT ...; shows its plan
\\d                list topics, and tables of the pipeline
\\d NAME           list the columns of a topic or table; its fields are looked for again
\\q                end, as Ctrl-D
\\?                show this
Tab               complete a keyword, topic or column
Ctrl-C            cancel the query, or discard the line"""


class Engine(Protocol):
    """What runs queries."""

    @property
    def dialect(self) -> Dialect: ...

    def prepare(self) -> None:
        """Starts in the background what the first query needs."""

    def run(self, query: str) -> QueryResult: ...

    def attempt(self, work: Callable[[], None]) -> None:
        """Calls ``work``, which runs a query. Ctrl-C cancels the query and raises KeyboardInterrupt."""

    def forget(self, table: str) -> None:
        """Looks for the fields of a topic again when it is used next."""

    def __enter__(self) -> Any: ...

    def __exit__(self, *raised: Any) -> None: ...


class Prompt:
    """Reads statements and prints their results until the input ends."""

    def __init__(self, engine: Engine, catalog: "TableCatalog", printed: Callable[[QueryResult], None]) -> None:
        self._engine = engine
        self._catalog = catalog
        self._printed = printed
        self._pending = ""

    def pending(self) -> str:
        """Returns the lines of the statement that is being typed."""
        return self._pending

    def read_pipe(self) -> None:
        """Runs the statements of standard input. The last one may lack its semicolon."""
        for line in sys.stdin:
            if self._takes(line, self._run):
                return
        if not is_blank(self._pending, self._engine.dialect):
            self._run(self._pending)

    def talk(self, editor: "LineEditor") -> None:
        output.note(GREETING)
        self._engine.prepare()
        while True:
            try:
                line = editor.line(FURTHER if self._pending else FIRST)
                if line is None or self._takes(f"{line}\n", self._try):
                    return
            except KeyboardInterrupt:
                self._pending = ""
                output.note("")
            except CommandError as error:
                self._pending = ""
                output.note(f"skep: {error}")

    def _takes(self, line: str, run: Callable[[str], None]) -> bool:
        """Handles a line. Returns whether it ends the prompt."""
        words = line.strip().rstrip(";").split(maxsplit=1)
        if not self._pending and words and (words[0].startswith("\\") or words in ENDS):
            return self._command(words)
        complete, rest = statements(self._pending + line, self._engine.dialect)
        # Before they run: if one fails, the others are not a part of what is typed next.
        self._pending = "" if is_blank(rest, self._engine.dialect) else rest
        for one in complete:
            if not is_blank(one, self._engine.dialect):
                run(one)
        return False

    def _try(self, query: str) -> None:
        self._engine.attempt(lambda: self._run(query))

    def _run(self, query: str) -> None:
        self._catalog.refresh()
        self._printed(self._engine.run(query))
        output.flush()

    def _command(self, words: list[str]) -> bool:
        match words:
            case ["\\q"] | ["exit"] | ["quit"]:
                return True
            case ["\\?"]:
                output.line(HELP)
            case ["\\d"]:
                self._catalog.refresh()
                output.table(("name", "kind"), self._catalog.listed())
            case ["\\d", name]:
                self._describe(name)
            case _:
                raise CommandError(f"there is no command {words[0]}; \\? lists them")
        output.flush()
        return False

    def _describe(self, name: str) -> None:
        self._catalog.refresh()
        plain = name.strip('`"')
        found = tables_named("`" + plain.replace("`", "``") + "`", self._catalog.names())
        if not found:
            raise self._catalog.unknown(plain)
        [table] = found.values()
        self._engine.forget(table)
        output.table(("column", "type"), self._catalog.described(table))


def completions(text: str, before: str, catalog: "TableCatalog", columns: Callable[[str], list[str]]) -> Iterator[str]:
    """Yields what ``text`` can become. ``before`` is what was typed before it; ``columns`` returns those of a table."""
    if before.lstrip() == "" and text.startswith("\\"):
        yield from (command for command in ("\\d", "\\q", "\\?") if command.startswith(text))
        return
    tables = catalog.shown_names()
    if before.lstrip().startswith("\\d"):
        yield from (name for name in tables if name.lower().startswith(text.lower()))
        return
    owner, dot, start = text.rpartition(".") if not text.startswith("`") else ("", "", text)
    named = tables_named(before, catalog.names())
    names = sorted({column for table in dict.fromkeys(named.values()) for column in columns(table)})
    if not dot:
        yield from (name for name in tables if _begins(name, start))
        yield from (word if start.isupper() else word.lower() for word in KEYWORDS if start and _begins(word, start))
    yield from (f"{owner}{dot}{name}" for name in names if _begins(name, start))


def _begins(name: str, start: str) -> bool:
    return name.lower().startswith(start.lower()) or name.lower().startswith(f"`{start.lower()}")


_WORDS = (
    "SELECT FROM WHERE GROUP BY ORDER HAVING LIMIT JOIN LEFT RIGHT INNER OUTER CROSS ON USING UNION ALL DISTINCT AS "
    "AND OR NOT IN IS NULL LIKE BETWEEN CASE WHEN THEN ELSE END WITH EXISTS CAST DESC ASC OVER PARTITION INTERVAL "
    "TIMESTAMP DATE EXPLAIN COUNT SUM AVG MIN MAX COALESCE DATE_TRUNC NOW TRUE FALSE"
)
KEYWORDS = _WORDS.split()
