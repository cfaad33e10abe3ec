"""The clone that a page is read in: for the tests one that looks installed, for ``make docs-check`` a fresh one."""

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

from tests.docs.pages import ROOT

_ACTIVATE = 'export VIRTUAL_ENV={0} PATH={0}/bin:"$PATH"\n'
_PIP = """#!{python}
import re, sys, tomllib
extras = tomllib.load(open({pyproject!r}, "rb"))["project"]["optional-dependencies"]
for name in re.findall(r"\\[([a-z,]+)\\]", " ".join(sys.argv)):
    for extra in name.split(","):
        assert extra in extras, "there is no extra " + extra
"""


def path_without_environments() -> str:
    """Returns the PATH of a new terminal: without the virtual environment that runs this."""
    own = {str(Path(sys.executable).parent), os.path.join(os.environ.get("VIRTUAL_ENV", sys.prefix), "bin")}
    return os.pathsep.join(folder for folder in os.environ["PATH"].split(os.pathsep) if folder not in own)


def clone_that_looks_installed(folder: Path) -> Path:
    """Makes a clone whose ``.venv`` is as after ``make run``, but runs the Python that runs this.

    Its commands are on the PATH only after its ``activate``. Its pip installs nothing, and refuses unknown extras.
    """
    clone = folder / "skep"
    commands = clone / ".venv" / "bin"
    commands.mkdir(parents=True)
    for item in ROOT.iterdir():
        if item.name not in (".venv", ".git", "skep-data", "pipelines"):
            (clone / item.name).symlink_to(item)
    # A copy, because runs of the examples write into it.
    ignored = shutil.ignore_patterns("pipeline-storage", "__pycache__")
    shutil.copytree(ROOT / "pipelines", clone / "pipelines", ignore=ignored)
    (commands / "activate").write_text(_ACTIVATE.format(clone / ".venv"))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    sources = f"import sys; sys.path.insert(0, {str(ROOT / 'src')!r})"
    scripts = {
        name: f"#!{sys.executable}\n{sources}\nfrom {target.partition(':')[0]} import main\n\nmain()\n"
        for name, target in project["scripts"].items()
    }
    scripts["pip"] = _PIP.format(python=sys.executable, pyproject=str(ROOT / "pyproject.toml"))
    for name in ("python", "python3"):
        scripts[name] = f'#!/bin/sh\nPYTHONPATH={ROOT / "src"} exec {sys.executable} "$@"\n'
    for name, script in scripts.items():
        (commands / name).write_text(script)
        (commands / name).chmod(0o755)
    for stamp in (".run", ".spark", ".dev"):
        (clone / ".venv" / stamp).touch()
    return clone


def fresh_clone(folder: Path) -> Path:
    """Copies the files that git knows, and new ones that it does not ignore. Nothing is installed there."""
    clone = folder / "skep"
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT, capture_output=True
    )
    for name in listed.stdout.decode().split("\0"):
        if name and (ROOT / name).is_file():
            (clone / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, clone / name)
    return clone
