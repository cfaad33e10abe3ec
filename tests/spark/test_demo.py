"""The demo, wholly as a reader runs it. The examples are in ``test_pipelines``, in one Spark."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.spark.pipelining import ROOT, RUN_TIMEOUT_S, environment

pytestmark = [pytest.mark.xdist_group("spark-pipelines"), pytest.mark.timeout(900)]


def _environment_of_make(folder: Path) -> Path:
    """What `make` takes for a virtual environment that has everything, and runs this Python."""
    python = folder / "venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    for stamp in (".run", ".spark", ".dev"):
        (folder / "venv" / stamp).touch()
    return folder / "venv"


STORY = (
    r"A broker runs on 127\.0\.0\.1:\d+: started in ",
    r"\$ skep topics create clicks ",
    r".* clicks and their pipeline ",
    r"\$ skep produce clicks ",
    r"\$ skep pipeline run ",
    r".* clicks: 200 rows in, ",
    r".* The run completed in ",
    r".* results ",
    r"The most popular pages, from Parquet top_pages \(",
    r" home ",
    r"The longest visits, from topic sessions \(5 of \d+ rows, the largest first\)",
    r"The busiest minutes, from topic page-views \(5 of \d+ rows, the largest first\)",
    r"200 clicks were sent, and Parquet clicks has 200 rows: each click once\.",
    r"The demo took \d+ s",
)


def test_the_demo_tells_its_story(tmp_path: Path) -> None:
    ran = subprocess.run(
        ["make", "demo", f"VENV={_environment_of_make(tmp_path)}", "ARGS=--rounds 1 --clicks 200"],
        cwd=ROOT,
        env={**environment(), "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=2 * RUN_TIMEOUT_S,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    lines = iter(ran.stdout.splitlines())
    for part in STORY:
        assert any(re.match(part, line) for line in lines), f"{part} is missing, or late:\n{ran.stdout}"
    assert not list(tmp_path.glob("skep-demo-*")), "all of it is gone"
