"""The text of queries: which topics a query names, and where a statement ends. No engine is needed for it.

What is found here only prepares a query: the engine's own parser decides. A name is looked for outside of comments and
strings. Spark and DuckDB write names and strings differently, hence the dialects.
"""

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from difflib import get_close_matches

from skep.cli.failures import CommandError, UsageError

_COMMENT = r"--[^\n]*|/\*.*?(?:\*/|$)"
_BACKTICKS = r"`(?:[^`]|``)*(?:`|$)"


@dataclass(frozen=True)
class Dialect:
    """How a dialect of SQL is divided. A string or name that is not closed extends to the end of the text."""

    text: str
    """A string."""
    name: str
    """A name in quotes."""

    def tokens(self, query: str) -> Iterator[tuple[str, str, int]]:
        """Yields (kind, text, end): kinds are comment, text, name (without its quotes), word and sign."""
        pattern = re.compile(
            rf"(?P<comment>{_COMMENT})|(?P<text>{self.text})|(?P<name>{self.name})|(?P<word>[^\W\d]\w*)|(?P<sign>\d\w*|.)",
            re.DOTALL,
        )
        for found in pattern.finditer(query):
            kind = str(found.lastgroup)
            yield kind, _unquoted(found[0]) if kind == "name" else found[0], found.end()


SPARK = Dialect(r"'(?:[^'\\]|\\.|'')*(?:'|$)|\"(?:[^\"\\]|\\.)*(?:\"|$)", _BACKTICKS)
DUCKDB = Dialect(r"'(?:[^']|'')*(?:'|$)|\$\$.*?(?:\$\$|$)", rf"{_BACKTICKS}|\"(?:[^\"]|\"\")*(?:\"|$)")


def _unquoted(name: str) -> str:
    quote = name[0]
    return name[1:].removesuffix(quote).replace(2 * quote, quote)


def tables_named(query: str, tables: Collection[str], dialect: Dialect = SPARK) -> dict[str, str]:
    """Returns the names in ``query`` that are tables, with the table of each.

    A column with the name of a table only creates an unused view. Names in SQL are case-insensitive: a name stands
    for the table with exactly that name, else for the only one that differs in case.
    """
    by_lower: dict[str, list[str]] = {}
    for table in tables:
        by_lower.setdefault(table.lower(), []).append(table)
    named: dict[str, str] = {}
    for kind, name, _ in dialect.tokens(query):
        if kind in ("name", "word"):
            alike = by_lower.get(name.lower(), [])
            if name in alike:
                named[name] = name
            elif len(alike) == 1:
                named[name] = alike[0]
    chosen: dict[str, str] = {}
    for table in named.values():
        other = chosen.setdefault(table.lower(), table)
        if other != table:
            # Views have one name for both, and the query would read one of them twice.
            raise CommandError(f"{other} and {table} differ only in case; a query can use one of them")
    return named


_NOT_A_TABLE = ("select", "values", "lateral", "table", "stream", "only", "unnest", "with", "from", "as", "map")
_TAKE_FROM = ("extract", "trim", "ltrim", "rtrim", "btrim", "substring", "substr", "overlay", "position")


def missing_table(query: str, tables: Collection[str]) -> str | None:
    """Returns the first name after FROM or JOIN that cannot be a table of a new Spark session; None if there is none.

    Only for a query whose meaning is certain: SELECT or WITH, and a name without a dot that the query itself does not
    define. Everything else is left to Spark, which reports it later.
    """
    tokens = [(kind, text) for kind, text, _ in SPARK.tokens(query) if kind != "comment" and not text.isspace()]
    if not tokens or tokens[0][1].lower() not in ("select", "with"):
        return None
    known = {table.lower() for table in tables} | _defined(tokens)
    callers: list[str] = []
    words = [text.lower() if kind in ("word", "sign") else "" for kind, text in tokens]
    for place, word in enumerate(words):
        if word == "(":
            callers.append(words[place - 1] if place else "")
        elif word == ")" and callers:
            callers.pop()
        if word not in ("from", "join") or place + 1 == len(tokens) or words[place - 1] in ("distinct", "."):
            continue
        if callers and callers[-1] in _TAKE_FROM:
            continue
        kind, name = tokens[place + 1]
        if kind not in ("name", "word") or words[place + 1] in _NOT_A_TABLE or words[place + 2 : place + 3] in _JOINED:
            continue
        if name.lower() not in known:
            return name
    return None


_JOINED = (["("], ["."], [":"], ["-"])
"""After a name: it is a function, a part of a longer name, or has to be written in backticks."""


def _defined(tokens: list[tuple[str, str]]) -> set[str]:
    """Returns the names that WITH may define: ``WITH a AS (...), b (x, y) AS (...)``."""
    texts = [text.lower() for _, text in tokens]
    return {
        name
        for before, name, after in zip(texts, texts[1:], texts[2:], strict=False)
        if before in ("with", "recursive", ",") and after in ("as", "(")
    }


_BEGINNINGS = ("select", "with", "values", "describe", "explain", "insert", "create")
_PAIRS = {")": "(", "]": "["}
_CLOSES = {"text": "string", "name": "name", "comment": "comment"}
_UNSURE = re.compile(r"\\|\$\$|/\*(?:(?!\*/).)*/\*|\b[rR]['\"]", re.DOTALL)
"""Escapes, which an option of Spark changes; strings in dollars, or raw ones; comments within comments."""


def syntax_error(query: str) -> str | None:
    """Returns what is wrong with a query, if that is certain before Spark's own parser has seen it; None otherwise.

    Found are an empty query, a first word that is nearly one with which statements begin, and in SELECT and WITH a
    string, name, comment or bracket that is not closed. Other statements may have any text, as SET does.
    """
    tokens = list(_raw_tokens(query))
    words = [text for kind, text in tokens if kind != "comment" and not text.isspace()]
    if not words:
        return "the query is empty"
    first = words[0].lower()
    if first not in ("select", "with"):
        near = get_close_matches(first, _BEGINNINGS, 1, 0.8) if first.isalpha() and first not in _BEGINNINGS else []
        return f"no statement begins with {words[0]}; {near[0].upper()} does" if near else None
    if _UNSURE.search(query):
        return None
    opened: list[str] = []
    for kind, text in tokens:
        if kind in _CLOSES and not _is_closed(text):
            return f"the {_CLOSES[kind]} that begins with {_shortened(text)} is not closed"
        if kind == "sign" and text in _PAIRS.values():
            opened.append(text)
        elif kind == "sign" and text in _PAIRS and (not opened or opened.pop() != _PAIRS[text]):
            return f"a {text} has no {_PAIRS[text]} before it"
    return f"a {opened[-1]} is not closed" if opened else None


def _raw_tokens(query: str) -> Iterator[tuple[str, str]]:
    """Yields (kind, text), with quotes."""
    start = 0
    for kind, _, end in SPARK.tokens(query):
        yield kind, query[start:end]
        start = end


def _is_closed(token: str) -> bool:
    if token.startswith("--"):
        return True
    if token.startswith("/*"):
        return len(token) > 3 and token.endswith("*/")
    # A quote is written twice within quotes, so those at the end are an odd number if the last one closes.
    inner = token[1:]
    return (len(inner) - len(inner.rstrip(token[0]))) % 2 == 1


def _shortened(token: str) -> str:
    line = token.split("\n", 1)[0]
    return line if len(line) <= 20 and line == token else f"{line[:20]}..."


def statements(text: str, dialect: Dialect = SPARK) -> tuple[list[str], str]:
    """Returns the statements that end with a semicolon, without it, and the rest."""
    found: list[str] = []
    start = 0
    for kind, sign, end in dialect.tokens(text):
        if kind == "sign" and sign == ";":
            found.append(text[start : end - 1].strip())
            start = end
    return found, text[start:]


def is_blank(text: str, dialect: Dialect = SPARK) -> bool:
    """Returns whether a text has only spaces and comments."""
    return all(kind == "comment" or token.isspace() for kind, token, _ in dialect.tokens(text))


def in_double_quotes(query: str) -> str:
    """Returns a query for DuckDB, with double quotes instead of backticks around names."""
    parts, start = [], 0
    for kind, name, end in DUCKDB.tokens(query):
        token = query[start:end]
        parts.append('"' + name.replace('"', '""') + '"' if kind == "name" and token[0] == "`" else token)
        start = end
    return "".join(parts)


def given_schemas(texts: list[str] | None) -> dict[str, str]:
    """Parses the ``--schema`` options, like ``orders=id INT, price DOUBLE``."""
    schemas: dict[str, str] = {}
    for text in texts or ():
        topic, equals, schema = text.partition("=")
        if not equals or not topic.strip() or not schema.strip():
            raise UsageError(f"--schema {text}: expected TOPIC='NAME TYPE, ...'")
        schemas[topic.strip()] = schema.strip()
    return schemas
