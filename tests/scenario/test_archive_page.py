"""docs/ARCHIVE.md: its commands run as printed, one after the other, and print what it says; DuckDB and polars too."""

import os
import subprocess
import sys
from pathlib import Path

import skep
from skep.testing import EmbeddedBroker

PAGE = Path(__file__).parents[2] / "docs" / "ARCHIVE.md"


def blocks(kind: str) -> list[str]:
    return [block.split("```")[0] for block in PAGE.read_text().split(f"```{kind}\n")[1:]]


def test_the_page_does_what_it_says(tmp_path: Path) -> None:
    script = tmp_path / "skep"
    script.write_text(f"#!{sys.executable}\nfrom skep.cli.main import main\n\nmain()\n")
    script.chmod(0o755)
    with EmbeddedBroker() as broker:
        environment = os.environ | {
            "PATH": f"{tmp_path}:{os.environ['PATH']}",
            "PYTHONPATH": str(Path(skep.__file__).parents[1]),
            "SKEP_BOOTSTRAP": broker.bootstrap_servers,
        }
        ran = 0
        for block in blocks("console"):
            for text in block.removeprefix("$ ").split("\n$ "):
                command, _, shown = text.strip("\n").partition("\n")
                result = subprocess.run(
                    ["bash", "-c", command], cwd=tmp_path, env=environment, capture_output=True, text=True
                )
                assert result.returncode == 0, f"{command}\n{result.stderr}"
                assert result.stdout.strip() == shown.strip(), command
                ran += 1
        assert ran > 10
    without_spark = [code for code in blocks("python") if "spark" not in code]
    assert len(without_spark) == 2
    for code in without_spark:
        result = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
        assert result.returncode == 0, f"{code}\n{result.stderr}"
