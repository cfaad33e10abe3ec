"""``make docs-check``: every page, Spark included, in page order, from a fresh clone in which nothing is installed.

    python -m tests.docs [--installed] [PAGE ...]

The README comes first, and installs what the other pages use. After each page its files are removed. ``--installed``
skips the installation: it uses the environment that runs this.
"""

import argparse
import shutil
import sys
import tempfile
import time
from pathlib import Path

from tests.docs.clones import clone_that_looks_installed, fresh_clone, path_without_environments
from tests.docs.pages import PAGES, Page, Step, steps
from tests.docs.reader import PageDiffers, PageFailed, Reader

STEP_TIMEOUT_S = 1800.0
README = PAGES[0].path


def folder_of(page: Page, clone: Path) -> Path:
    """Returns where a page is read: an example of a pipeline in its own folder, the rest at the top."""
    return (clone / page.path).parent if page.path.startswith("pipelines/") else clone


def read(page: Page, clone: Path) -> bool:
    """Types everything on the page, and prints each step with the time that it took.

    Returns whether every step printed what the page shows. Raises PageFailed when a step fails: the rest of the page
    depends on it.
    """
    folder = folder_of(page, clone)
    is_right = True
    with Reader(page.path, folder, STEP_TIMEOUT_S, {"PATH": path_without_environments()}) as reader:
        if page.path != README:
            reader.do(Step("command", f"source {clone / '.venv' / 'bin' / 'activate'}", "", 0))
        if not page.has_own_broker and steps(page.text):
            reader.do(Step("command", "skep serve", "", 0))
        for step in steps(page.text):
            began = time.monotonic()
            try:
                reader.do(step)
            except PageDiffers as error:
                is_right = False
                print(f"FAILED  {error}", flush=True)
            typed = step.text.strip().splitlines()[0]
            print(f"{time.monotonic() - began:7.1f} s  {page.path}:{step.line}  {typed}", flush=True)
    return is_right


def remove_new(folder: Path, before: set[Path]) -> None:
    for path in set(folder.iterdir()) - before:
        if path.name != ".venv":
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.docs", description="Do what the pages say, in page order.")
    parser.add_argument("pages", nargs="*", help="README.md, docs/SPARK.md ...; all of them if none is given")
    parser.add_argument("--installed", action="store_true", help="use this Python instead of a new environment")
    options = parser.parse_args()
    if unknown := set(options.pages) - {page.path for page in PAGES}:
        parser.error(f"not a page: {', '.join(sorted(unknown))}")
    # The installation is part of the README.
    pages = [page for page in PAGES if not options.pages or page.path in options.pages]
    if not options.installed and pages[0].path != README:
        pages.insert(0, PAGES[0])
    failed = 0
    with tempfile.TemporaryDirectory(prefix="skep-docs-") as folder:
        clone = (clone_that_looks_installed if options.installed else fresh_clone)(Path(folder))
        for page in pages:
            before = set(folder_of(page, clone).iterdir())
            try:
                failed += not read(page, clone)
            except PageFailed as error:
                failed += 1
                print(f"FAILED  {error}", flush=True)
            remove_new(folder_of(page, clone), before)
    print(f"{len(pages)} pages, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
