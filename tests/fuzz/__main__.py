"""The command line of a fuzz run; exit code 1 and the seed when something went wrong."""

import secrets
import sys

from tests.fuzz.run import run


def main() -> int:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 60
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else secrets.randbits(32)
    print(f"fuzz: {seconds:g} s with seed {seed}", flush=True)
    report = run(seconds, seed)
    for what, count in sorted(report.done.items(), key=lambda item: -item[1]):
        print(f"  {count:>10,}  {what.replace('_', ' ')}")
    print(f"  {report.rounds:>10,}  rounds of the witness, the slowest {report.slowest_round_s * 1000:.0f} ms")
    print(f"  {report.grown_bytes / (1 << 20):>10.1f}  MiB that the broker grew")
    for failure in report.failures:
        print(f"fuzz: FAILED with seed {report.seed}: {failure}", file=sys.stderr)
    return 1 if report.failures else 0


if __name__ == "__main__":
    raise SystemExit(main())
