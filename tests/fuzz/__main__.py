"""The command line of a fuzz run; exit code 1 and the seed when something went wrong."""

import argparse
import secrets
import sys

from tests.fuzz.run import MODES, Report, run


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description="Hostile bytes against a broker.")
    parser.add_argument("seconds", nargs="?", type=float, default=60, help="all modes together")
    parser.add_argument("seed", nargs="?", type=int, default=None)
    parser.add_argument("--mode", choices=MODES, action="append", help="only this one; repeatable")
    arguments = parser.parse_args()
    seed = secrets.randbits(32) if arguments.seed is None else arguments.seed
    modes = arguments.mode or MODES
    seconds = arguments.seconds / len(modes)
    reports = []
    for mode in modes:
        print(f"fuzz: {mode}, {seconds:g} s with seed {seed}", flush=True)
        reports.append(run(seconds, seed, mode))
        show(reports[-1])
    return 1 if any(report.failures for report in reports) else 0


def show(report: Report) -> None:
    for what, count in sorted(report.done.items(), key=lambda item: -item[1]):
        print(f"  {count:>10,}  {what.replace('_', ' ')}")
    print(f"  {report.frames:>10,}  frames")
    slowest_ms, cpu_ms = report.slowest_round_s * 1000, report.slowest_round_cpu_s * 1000
    print(
        f"  {report.rounds:>10,}  rounds of the witness, the slowest {slowest_ms:.0f} ms, {cpu_ms:.0f} ms CPU at most"
    )
    before, grown, late = (size / (1 << 20) for size in (report.rss_bytes, report.grown_bytes, report.grown_late_bytes))
    print(f"  {grown:>10.1f}  MiB that the broker grew, from {before:.1f}; {late:.1f} in the second half", flush=True)
    for failure in report.failures:
        print(f"fuzz: FAILED with seed {report.seed}, mode {report.mode}: {failure}", file=sys.stderr)


if __name__ == "__main__":
    raise SystemExit(main())
