"""The documentation does what it says: what a page tells its reader to type works, in page order.

The quick pages run here, in a clone that looks installed. ``make docs-check`` runs all of them from a fresh clone.
"""

import html
import re
from pathlib import Path

import pytest

from skep.cli.serve.serve_command import next_steps
from tests.docs.__main__ import read
from tests.docs.clones import clone_that_looks_installed, path_without_environments
from tests.docs.pages import PAGES, ROOT, Page, Step, commands, has_blocks, is_as_shown, steps
from tests.docs.picture import COMMANDS, PICTURE, START
from tests.docs.reader import PageFailed, Reader

QUICK = [page for page in PAGES if page.is_quick]
TIMEOUT_S = 300.0


@pytest.mark.parametrize("page", QUICK, ids=[page.path for page in QUICK])
def test_a_page_does_what_it_says(page: Page, tmp_path: Path) -> None:
    clone = clone_that_looks_installed(tmp_path)
    with Reader(page.path, clone, TIMEOUT_S, {"PATH": path_without_environments()}) as reader:
        if page.path != "README.md":
            reader.do(steps("```console\n. .venv/bin/activate\n```\n")[0])
        if not page.has_own_broker:
            assert reader.serve("skep serve")[0] == 0
        for step in steps(page.text):
            if not step.is_slow:
                reader.do(step)


def test_every_page_with_something_to_type_is_listed() -> None:
    paths = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "pipelines").rglob("*.md")]
    found = {str(path.relative_to(ROOT)) for path in paths if has_blocks(path.read_text())}
    # The reader of OPERATING.md stops and restores brokers: tests/scenario/test_operating_page.py.
    assert found == {"docs/OPERATING.md", *(page.path for page in PAGES)}


def test_pages_create_topics_of_their_own_so_that_a_reader_of_several_needs_one_broker() -> None:
    made: dict[str, list[str]] = {}
    for page in PAGES:
        # CLUSTER.md has a cluster of its own, an example of a pipeline says which topics must not exist.
        if page.path != "docs/CLUSTER.md" and not page.path.startswith("pipelines/"):
            topics = re.findall(r"skep topics create ([\w.-]+)", "\n".join(step.text for step in steps(page.text)))
            for topic in set(topics):
                made.setdefault(topic, []).append(page.path)
    assert {topic: pages for topic, pages in made.items() if len(pages) > 1} == {}


def test_nobody_is_told_to_install_a_package_that_is_not_published() -> None:
    """Skep is not on PyPI."""
    places = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "src").rglob("*.py")]
    wrong = [path.name for path in places if re.search(r"pip install [\"'`]*skep\b", path.read_text())]
    assert not wrong, "say pip install -e '.[extra]' in the clone, in code base/extras.py"


def test_the_picture_of_the_terminal_shows_the_commands_that_make_it() -> None:
    shown = html.unescape(re.sub(r"<[^>]+>", "", PICTURE.read_text())).replace("\xa0", " ")
    assert [command for command in (START, *COMMANDS) if f"$ {command}" not in shown] == []
    assert all(line.lstrip() in shown for line in next_steps("127.0.0.1:9092", "/no environment").splitlines())


# How a page is read. The tests above must be able to fail.


@pytest.mark.parametrize(
    ("step", "reason"),
    [
        (Step("command", "echo to no avail; false", "", 7), "to no avail"),
        (Step("command", "echo two", "one\n", 7), "and the page shows\none"),
        (Step("command", "no-such-command", "", 7), "no-such-command: command not found"),
        (Step("code", "1 / 0", "", 7), "ZeroDivisionError"),
        (Step("code", "print(two)", "1\n", 7), "and the page shows\n1"),
        (Step("code", "raise SystemExit", "", 7), "failed with exit code 1"),
        (Step("tests", "def test_it():\n    assert 1 == 2\n", "", 7), "assert 1 == 2"),
        (Step("command", "skep serve --insecure --listen 192.0.2.1:9092", "", 7), "cannot listen on 192.0.2.1"),
    ],
    ids=lambda value: value.text.splitlines()[0] if isinstance(value, Step) else "",
)
def test_a_step_that_fails_is_told_with_its_place_and_what_it_printed(step: Step, reason: str, tmp_path: Path) -> None:
    with Reader("PAGE.md", clone_that_looks_installed(tmp_path), TIMEOUT_S) as reader:
        reader.do(Step("command", "source .venv/bin/activate; cd /", "", 1))
        reader.do(Step("command", "pwd", "/\n", 2))
        reader.do(Step("code", "two = 2\nprint(two)", "2\n", 3))
        with pytest.raises(PageFailed, match=re.escape(reason)) as failure:
            reader.do(step)
    assert str(failure.value).startswith("PAGE.md:7\n")


def test_a_page_is_read_on_where_only_its_output_differs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = Page("PAGE.md", has_own_broker=True)
    text = "```console\n$ echo one\ntwo\n$ echo three\nfour\n$ false\n$ echo five\nsix\n```\n"
    monkeypatch.setattr(Page, "text", text)
    with pytest.raises(PageFailed, match="false"):
        read(page, clone_that_looks_installed(tmp_path))
    printed = capsys.readouterr().out
    assert [line for line in printed.splitlines() if line.startswith("FAILED")] == [
        "FAILED  PAGE.md:2",
        "FAILED  PAGE.md:4",
    ]


def test_commands_are_not_found_before_the_environment_is_activated(tmp_path: Path) -> None:
    clone = clone_that_looks_installed(tmp_path)
    with Reader("PAGE.md", clone, TIMEOUT_S, {"PATH": path_without_environments()}) as reader:
        with pytest.raises(PageFailed, match="skep: command not found"):
            reader.do(Step("command", "skep topics list", "", 1))


PAGE = """
```console
$ echo one \\
    two
one two
$ true
```

<!-- not run: needs a moon -->

```console
launch
```

<!-- docs-check: is slow -->
```python
print(1)
```

```text
1
```

```
not typed
```
```python
def test_nothing(): pass
```
"""


def test_the_steps_of_a_page_are_in_page_order_with_what_they_print() -> None:
    assert [(step.kind, step.text, step.shown, step.is_slow) for step in steps(PAGE)] == [
        ("command", "echo one \\\n    two", "one two\n", False),
        ("command", "true", "", False),
        ("code", "print(1)\n", "1\n", True),
        ("tests", "def test_nothing(): pass\n", "", False),
    ]
    assert [PAGE.splitlines()[step.line - 1].strip() for step in steps(PAGE)[:3]] == [
        "$ echo one \\",
        "$ true",
        "print(1)",
    ]


def test_without_prompts_every_line_is_a_command() -> None:
    assert commands("make run   # a broker\n\nls\n") == [(0, "make run   # a broker", ""), (2, "ls", "")]


def test_dots_stand_for_any_text_and_alone_for_any_lines() -> None:
    assert is_as_shown("id 7, done\n", "id ..., done\n")
    assert is_as_shown("a\nb\nc\nd\n", "a\n...\nd\n")
    assert is_as_shown("a   b  \n\n", "a b")
    assert not is_as_shown("a\nb\nc\n", "a\n...\nd\n")
    assert not is_as_shown("a\nb\n", "a\n")
    assert not is_as_shown("a+b\n", "aab\n")
