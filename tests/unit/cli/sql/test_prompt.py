"""What the prompt completes, and where the history is."""

from pathlib import Path

import pytest

from skep.cli.sql.line_editor import history_path
from skep.cli.sql.pipeline_tables import PipelineTables
from skep.cli.sql.prompt import completions
from skep.cli.sql.table_catalog import TableCatalog

COLUMNS = {"orders": ["id", "price", "_key"], "orders.large": ["`unit price`", "id"]}


class Known(TableCatalog):
    """A catalog without a cluster."""

    def __init__(self) -> None:
        self._names = {"orders", "orders.large", "__consumer_offsets"}
        self.pipeline = PipelineTables({"revenue": Path()})


@pytest.mark.parametrize(
    ("before", "text", "found"),
    [
        ("", "\\", ["\\d", "\\q", "\\?"]),
        ("\\d ", "or", ["orders"]),
        ("SELECT * FROM ", "", ["orders", "`orders.large`", "revenue"]),
        ("SELECT * FROM ", "or", ["orders", "`orders.large`", "order", "or"]),
        ("SELECT * FROM ", "OR", ["orders", "`orders.large`", "ORDER", "OR"]),
        ("SELECT * FROM ", "`or", ["`orders.large`"]),
        ("SELECT * FROM orders WHERE ", "pr", ["price"]),
        ("SELECT * FROM orders o WHERE ", "o.p", ["o.price"]),
        ("SELECT * FROM `orders.large` WHERE ", "un", ["union", "`unit price`"]),
        ("SELECT * FROM orders, `orders.large` WHERE ", "id", ["id"]),
        ("SELECT ", "pr", []),
        ("SELECT ", "__", []),
    ],
)
def test_words_are_completed(before: str, text: str, found: list[str]) -> None:
    assert list(completions(text, before, Known(), COLUMNS.__getitem__)) == found


def test_the_history_is_where_xdg_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ann")
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    assert history_path() == Path("/home/ann/.local/state/skep/sql_history")
    monkeypatch.setenv("XDG_STATE_HOME", "relative")
    assert history_path() == Path("/home/ann/.local/state/skep/sql_history")
    monkeypatch.setenv("XDG_STATE_HOME", "/state")
    assert history_path() == Path("/state/skep/sql_history")
