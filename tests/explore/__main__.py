"""The command line of a random search; exit code 1 when a test fails.

    python -m tests.explore --minutes 10

Runs pytest over all tests that use Hypothesis, again and again, each round with another seed, until the time is up.
Tests that are under way then are finished, others are skipped. A round with a failure is the last one: its output has
the smallest example that Hypothesis could find, for a state machine as the calls to paste into a test.
"""

import argparse
import os
import random
import re
import secrets
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

from tests.explore.search import UNTIL

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 1800
"""Of one test. A state machine gets more examples than ``make test`` gives it, on a machine that may be busy."""

_STATISTICS = re.compile(r"^=+ Hypothesis Statistics =+$.*?(?=^=|\Z)", re.MULTILINE | re.DOTALL)
_EXAMPLES = re.compile(r"^\s+- (\d+) passing, (\d+) failing,", re.MULTILINE)


class Round(NamedTuple):
    is_passed: bool
    examples: int
    summary: str
    output: str


def files_with_hypothesis(seed: int) -> list[str]:
    """In the order of the seed, so that it is not always the same tests that the end of the time leaves out."""
    tests = sorted((ROOT / "tests").rglob("test_*.py"))
    found = [str(path.relative_to(ROOT)) for path in tests if "hypothesis" in path.read_text()]
    random.Random(seed).shuffle(found)
    return found


def run_round(seed: int, until: float, arguments: list[str]) -> Round:
    command = [sys.executable, "-m", "pytest", "-q", "-m", "hypothesis", "-p", "tests.explore.search"]
    command += ["-p", "no:cacheprovider", f"--timeout={TIMEOUT_S}", "--hypothesis-show-statistics"]
    command += ["--hypothesis-profile=explore", f"--hypothesis-seed={seed}", *arguments]
    environment = {**os.environ, UNTIL: str(until)}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    examples = sum(int(passing) + int(failing) for passing, failing in _EXAMPLES.findall(done.stdout))
    summary = done.stdout.rstrip().rpartition("\n")[2]
    return Round(done.returncode == 0, examples, summary, _STATISTICS.sub("", done.stdout).rstrip())


def say(line: str) -> None:
    print(line, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.explore", description="A random search.")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=None, help="of the first round")
    parser.add_argument("pytest", nargs="*", help="for pytest after --: e.g. -n 2, or files instead of all")
    asked = parser.parse_args()
    is_all = not any(argument.startswith("tests") for argument in asked.pytest)
    began, until = time.monotonic(), time.time() + 60 * asked.minutes
    seed = secrets.randbits(32) if asked.seed is None else asked.seed
    rounds = examples = 0
    is_passed = True
    while is_passed and time.time() < until:
        files = files_with_hypothesis(seed) if is_all else []
        done = run_round(seed, until, [*asked.pytest, *files])
        rounds, examples, is_passed = rounds + 1, examples + done.examples, done.is_passed
        say(f"explore: round {rounds}, seed {seed}, {done.examples:,} examples: {done.summary}")
        if not is_passed:
            say(done.output)
        seed = secrets.randbits(32)
    minutes = (time.monotonic() - began) / 60
    if not is_passed:
        found = "FAILED: paste the example above into a test"
    else:
        found = "nothing found" if examples else "FAILED: the time was too short to try anything"
    say(f"explore: {examples:,} examples in {rounds} rounds, {minutes:.1f} minutes: {found}")
    return 0 if is_passed and examples else 1


if __name__ == "__main__":
    raise SystemExit(main())
