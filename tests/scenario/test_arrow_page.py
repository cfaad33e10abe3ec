"""docs/ARROW.md: its commands and code run as printed, one after the other, and print what it says that they print."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import skep
from skep.testing import EmbeddedBroker

PAGE = Path(__file__).parents[2] / "docs" / "ARROW.md"
BLOCK = re.compile(r"^```(console|python)\n(.*?)^```\n(?:```text\n(.*?)^```\n)?", re.MULTILINE | re.DOTALL)


def blocks() -> list[tuple[str, str, str]]:
    """Kind, text, and what is printed below it."""
    return [(kind, text, shown) for kind, text, shown in BLOCK.findall(PAGE.read_text())]


def test_the_page_shows_every_library() -> None:
    code = "".join(text for kind, text, _ in blocks() if kind == "python")
    assert all(word in code for word in ("to_pandas", "polars", "duckdb", "read_batches"))


def test_an_example_has_three_lines() -> None:
    examples = [text for kind, text, _ in blocks() if kind == "python" and text.startswith("import")]
    assert len(examples) >= 3
    assert all(len(text.splitlines()) <= 3 for text in examples)


def run_command(text: str, tmp_path: Path, bootstrap: str) -> None:
    script = tmp_path / "skep"
    script.write_text(f"#!{sys.executable}\nfrom skep.cli.main import main\n\nmain()\n")
    script.chmod(0o755)
    environment = os.environ | {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "PYTHONPATH": str(Path(skep.__file__).parents[1]),
        "SKEP_BOOTSTRAP": bootstrap,
    }
    for part in text.removeprefix("$ ").split("\n$ "):
        command, _, shown = part.strip("\n").partition("\n")
        ran = subprocess.run(["bash", "-c", command], env=environment, capture_output=True, text=True)
        assert ran.returncode == 0, f"{command}\n{ran.stderr}"
        if shown:
            assert ran.stdout.strip() == shown, command


def test_what_the_page_shows_is_what_happens(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, Any] = {}
    with EmbeddedBroker() as broker:
        for kind, text, shown in blocks():
            if kind == "console":
                run_command(text, tmp_path, broker.bootstrap_servers)
                continue
            capsys.readouterr()
            exec(compile(text.replace("localhost:9092", broker.bootstrap_servers), str(PAGE), "exec"), names)
            assert capsys.readouterr().out == shown, text
