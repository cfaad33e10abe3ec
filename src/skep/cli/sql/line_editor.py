"""Lines of a terminal, edited with Python's readline: history in a file, completion with Tab.

The history is ``skep/sql_history`` in XDG_STATE_HOME (``~/.local/state``), readable by its owner only. Each line is
appended when it is typed, so that two prompts at a time do not lose each other's lines. If the file cannot be written,
the history is that of this prompt.
"""

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from skep.cli import output

KEPT_LINES = 10_000
DELIMITERS = " \t\n,()=<>*+/;'\"[]"

Complete = Callable[[str, str], Sequence[str]]
"""Returns what a word can become; the second argument is what stands before it in the line."""


def history_path() -> Path:
    """Returns the file of the history. The specification of XDG ignores a relative path."""
    given = Path(os.environ.get("XDG_STATE_HOME", ""))
    return (given if given.is_absolute() else Path.home() / ".local" / "state") / "skep" / "sql_history"


class LineEditor:
    """Reads lines from the terminal. Used by one prompt at a time, because readline has one state."""

    def __init__(self, complete: Complete, history: Path) -> None:
        self._complete = complete
        self._history: Path | None = history
        self._found: Sequence[str] = ()
        # Without it, as when the output is a file, lines are read as they are, and the prompt goes to stderr.
        self._edits = sys.stdout.isatty()
        if self._edits:
            self._set_up(history)

    def line(self, prompt: str) -> str | None:
        """Returns the next line; None at the end of the input."""
        output.flush()
        if not self._edits:
            sys.stderr.write(prompt)
            sys.stderr.flush()
            text = sys.stdin.readline()
            return text.removesuffix("\n") if text else None
        import readline

        before = readline.get_current_history_length()
        try:
            line = input(prompt)
        except EOFError:
            output.line()
            return None
        # Neither an empty line nor the same line again becomes a part of the history.
        if readline.get_current_history_length() > before:
            self._keep()
        return line

    def _set_up(self, history: Path) -> None:
        import readline

        try:
            history.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            os.close(os.open(history, os.O_RDWR | os.O_CREAT, 0o600))
            readline.read_history_file(history)
        except OSError as error:
            self._history = None
            output.note(f"The history is not kept: {history}: {error.strerror}.")
        readline.set_history_length(KEPT_LINES)
        readline.set_completer_delims(DELIMITERS)
        readline.set_completer(self._candidate)
        # The two libraries that Python may be built with have different commands.
        editline = "libedit" in (readline.__doc__ or "")
        readline.parse_and_bind("bind ^I rl_complete" if editline else "tab: complete")

    def _keep(self) -> None:
        import readline

        if self._history is None:
            return
        try:
            readline.append_history_file(1, self._history)
        except OSError as error:
            output.note(f"The history is not kept: {self._history}: {error.strerror}.")
            self._history = None

    def _candidate(self, text: str, number: int) -> str | None:
        """Called by readline with 0, 1, 2 ... until it returns None. An exception here would be lost."""
        import readline

        if number == 0:
            self._found = self._complete(text, readline.get_line_buffer()[: readline.get_begidx()])
        return self._found[number] if number < len(self._found) else None
