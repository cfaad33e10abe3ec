"""The picture of a terminal in the README, docs/terminal.svg, made from a broker and commands that run.

    python -m tests.docs.picture

What is printed is shown as it is, with three exceptions: the port is 9092 again, the clone is ``/home/ann/skep``, and
the log of the broker is left out.
"""

import io
import re
import sys
import tempfile
from pathlib import Path

import rich._export_format
from rich.console import Console
from rich.text import Text

from tests.docs.clones import clone_that_looks_installed, path_without_environments
from tests.docs.pages import ROOT
from tests.docs.reader import PageFailed, Reader

PICTURE = ROOT / "docs" / "terminal.svg"
START = "make run"
COMMANDS = (
    "source .venv/bin/activate",
    "skep topics create orders --partitions 3",
    "seq 1 1000000 | skep produce orders",
    "skep consume orders --group billing --max-messages 400000 > billed.txt",
    "skep groups describe billing",
)
CLONE = "/home/ann/skep"
COLUMNS = 100
STEP_TIMEOUT_S = 300.0
_LOG_LINE = re.compile(r"^\d{4}-\d\d-\d\d .*\n", re.MULTILINE)


def session(folder: Path) -> list[tuple[str, str]]:
    """Runs the commands; returns each with what it printed."""
    clone = clone_that_looks_installed(folder)
    with Reader("the picture", clone, STEP_TIMEOUT_S, {"PATH": path_without_environments()}) as reader:
        found = [(START, reader.serve(START))]
        found += [(command, reader.enter(command)) for command in COMMANDS]
        port = reader.ports[9092]
    if failed := [(command, printed) for command, (code, printed) in found if code]:
        raise PageFailed(str(failed))
    return [(command, _tidy(printed, clone, port)) for command, (_, printed) in found]


def _tidy(printed: str, clone: Path, port: int) -> str:
    text = _LOG_LINE.sub("", printed).replace(str(clone), CLONE).replace(sys.prefix, f"{CLONE}/.venv")
    # With the port of the README the broker has no need to tell it.
    return text.replace(f" && export SKEP_BOOTSTRAP=127.0.0.1:{port}", "").replace(str(port), "9092")


def svg(lines: list[tuple[str, str]]) -> str:
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), highlight=False)
    for command, printed in lines:
        console.print(Text.assemble(("$ ", "green"), (command, "bold")), soft_wrap=True)
        if printed.strip():
            console.print(Text(printed.rstrip("\n")), soft_wrap=True)
        if command == START:
            console.print(Text("\n# in another terminal", "dim"))
    # The letters come from the reader's machine: a page must not load fonts from elsewhere.
    form = re.sub(r"\s*@font-face \{\{.*?\}\}", "", rich._export_format.CONSOLE_SVG_FORMAT, flags=re.DOTALL)
    return console.export_svg(title="Skep", code_format=form, unique_id="skep")


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="skep-picture-") as folder:
        PICTURE.write_text(svg(session(Path(folder))))


if __name__ == "__main__":
    main()
