"""``python -m tests.simulation``: schedules until one finds something, which is shortened and told step by step."""

import argparse
import secrets
import sys

from tests.simulation.walking import explain, look_for_violations


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, help="the first seed; drawn at random if not given")
    parser.add_argument("--schedules", type=int, default=1, help="so many seeds, one after another")
    parser.add_argument("--steps", type=int, default=300, help="draws for each; about a third of them can be made")
    options = parser.parse_args()
    seed = secrets.randbits(32) if options.seed is None else options.seed
    report = look_for_violations(range(seed, seed + options.schedules), options.steps)
    print(f"seed {seed}: {report.schedules} schedules, {report.steps} steps, {report.acknowledged} acknowledgements")
    print(f"{report.recoveries} leaders were found by comparing logs")
    if report.failed_seed is None:
        return 0
    print(f"FAILED: python -m tests.simulation --seed {report.failed_seed} --steps {options.steps}", file=sys.stderr)
    print("\n".join(explain(report.failed_seed, options.steps)))
    return 1


if __name__ == "__main__":
    raise SystemExit(main())
