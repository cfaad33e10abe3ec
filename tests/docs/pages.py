"""What a documentation page tells its reader to type, in page order, and what it says is printed then.

Blocks of ``console`` and ``python`` are typed by the reader; all others are not. In a console block with prompts
(``$``) the lines below a command are its output. Without prompts every line is a command. The output of a python block
is the ``text`` block right below it. ``...`` in an output stands for any text, on a line of its own for any lines.

A comment above a block says when it is not run, and why:

    <!-- not run: needs three machines -->        never
    <!-- docs-check: needs Spark -->              only by ``make docs-check``
"""

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
_BLOCK = re.compile(
    r"(?:^<!-- (?P<when>not run|docs-check): (?P<why>[^\n]+) -->\n+)?"
    r"^```(?P<kind>console|python)\n(?P<text>.*?)^```\n"
    r"(?:\n?```text\n(?P<shown>.*?)^```\n)?",
    re.MULTILINE | re.DOTALL,
)
_PROMPT = "$ "
ANY = "..."


@dataclass(frozen=True)
class Page:
    """A page by its path. ``has_own_broker`` is true where the reader starts the broker, or none is needed."""

    path: str
    is_quick: bool = False
    has_own_broker: bool = False

    @property
    def text(self) -> str:
        return (ROOT / self.path).read_text()


PAGES = (
    # First: everything after it uses what the reader of the README has installed.
    Page("README.md", is_quick=True, has_own_broker=True),
    Page("docs/TESTING.md", is_quick=True, has_own_broker=True),
    Page("docs/GROUPS.md", is_quick=True),
    Page("docs/QUEUES.md", is_quick=True),
    Page("docs/QUOTAS.md", is_quick=True),
    Page("docs/ARROW.md", is_quick=True),
    Page("docs/ARCHIVE.md", is_quick=True),
    Page("docs/SQL.md", is_quick=True),
    Page("docs/SECURITY.md", is_quick=True, has_own_broker=True),
    Page("docs/CLUSTER.md", has_own_broker=True),
    Page("docs/SPARK.md"),
    Page("docs/PIPELINES.md", has_own_broker=True),
    Page("docs/SPARK-CLUSTER.md"),
    Page("docs/PERFORMANCE.md"),
    Page("docs/PERFORMANCE-SPARK.md"),
    Page("pipelines/clickstream/README.md"),
    Page("pipelines/cdc/README.md"),
    Page("pipelines/enrichment/README.md"),
    Page("CONTRIBUTING.md"),
)


@dataclass(frozen=True)
class Step:
    """One thing that the reader types: ``kind`` is ``command``, ``code`` (Python) or ``tests`` (for pytest)."""

    kind: str
    text: str
    shown: str
    line: int
    is_slow: bool = False


def steps(page: str) -> list[Step]:
    """Returns what is run of a page, in order."""
    found: list[Step] = []
    for block in _BLOCK.finditer(page):
        if block["when"] == "not run":
            continue
        line = page.count("\n", 0, block.start("text")) + 1
        is_slow = block["when"] == "docs-check"
        if block["kind"] == "console":
            found += [Step("command", text, shown, line + at, is_slow) for at, text, shown in commands(block["text"])]
        else:
            kind = "tests" if re.search(r"^def test_", block["text"], re.MULTILINE) else "code"
            found.append(Step(kind, block["text"], block["shown"] or "", line, is_slow))
    return found


def has_blocks(page: str) -> bool:
    """Returns whether the page tells its reader to type anything, run or not."""
    return _BLOCK.search(page) is not None


def commands(block: str) -> list[tuple[int, str, str]]:
    """Returns the commands of a console block: the line in the block, the command, what is printed below it."""
    has_prompts = any(line.startswith(_PROMPT) for line in block.splitlines())
    found: list[tuple[int, str, str]] = []
    continues = False
    for at, line in enumerate(block.splitlines()):
        if continues:
            begin, command, shown = found[-1]
            found[-1] = (begin, f"{command}\n{line}", shown)
        elif line.startswith(_PROMPT):
            found.append((at, line.removeprefix(_PROMPT), ""))
        elif has_prompts:
            begin, command, shown = found[-1]
            found[-1] = (begin, command, f"{shown}{line}\n")
            continue
        elif line.strip():
            found.append((at, line, ""))
        continues = line.endswith("\\")
    return found


def is_as_shown(printed: str, shown: str) -> bool:
    """Returns whether ``printed`` is what the page shows. The width of space does not count: ports differ in length."""
    pattern = ""
    printed, shown = (re.sub(r"[ \t]+", " ", text) for text in (printed, shown))
    for line in shown.rstrip("\n").splitlines():
        if line.strip() == ANY:
            pattern += r"(?:[^\n]*\n)*?"
        else:
            pattern += r"[^\n]*?".join(re.escape(part) for part in line.rstrip().split(ANY)) + r" ?\n"
    return re.fullmatch(pattern, printed.rstrip("\n") + "\n") is not None
