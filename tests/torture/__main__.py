"""The command line of a long fault run; exit code 1 and the seed when something was lost.

    python -m tests.torture --minutes 60 --seed 7 --metadata zookeeper

The same seed gives the same faults in the same order. What came of them is written as JSON beside the brokers' logs.
"""

import argparse
import json
import secrets
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from tests.cluster.fault_run import Report, run
from tests.cluster.nemesis import Fault, kinds_for, schedule

BYTES_PER_RECORD = 200
RATE = 150.0


def for_minutes(faults: Iterator[Fault], minutes: float) -> Iterator[Fault]:
    """Until the time is over, or SIGTERM says that it is: then all that happened so far is judged."""
    deadline = time.monotonic() + 60 * minutes
    is_over = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: is_over.set())
    for fault in faults:
        if time.monotonic() >= deadline or is_over.is_set():
            return
        yield fault


def say(line: str) -> None:
    print(line, flush=True)


def print_summary(report: Report) -> None:
    rows = {
        "acknowledged": f"{report.acknowledged:,} of {report.sent:,} sent",
        "failed / unknown": f"{report.failed:,} / {report.unknown:,}",
        "sent again by the client": f"{report.sent_again:,} (a new producer epoch, librdkafka issue 4953)",
        "in the log at the end": f"{report.records:,}",
        "read meanwhile": f"{report.read:,}",
        "replicas compared": f"{report.compared_bytes:,} bytes",
        "lost by power cuts": f"{report.bytes_lost_by_power_cuts:,} bytes that were not synced",
        "longest without an acknowledgement": f"{report.longest_silence_s:.1f} s",
    }
    say(f"\n{sum(report.faults.values())} faults in {report.seconds / 60:.1f} minutes on {report.metadata}")
    for what, count in sorted(report.faults.items()):
        say(f"  {what:<36}{count:>8}")
    for what, text in rows.items():
        say(f"  {what:<36}{text}")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.torture", description="A long fault run.")
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=None, help="of an earlier run, to have the same faults again")
    parser.add_argument("--metadata", choices=["sqlite", "zookeeper"], default="sqlite")
    parser.add_argument("--rate", type=float, default=RATE, help="records a second of each producer")
    parser.add_argument("--results", type=Path, default=Path("torture-results"), help="directory for JSON and logs")
    parser.add_argument("--only", action="append", help="only faults of this kind; may be given several times")
    given = parser.parse_args()
    seed = secrets.randbits(32) if given.seed is None else given.seed
    say(f"torture: {given.minutes:g} minutes on {given.metadata} with seed {seed}")
    directory = given.results / f"{given.metadata}-{seed}"
    report = run(
        given.metadata,
        for_minutes(schedule(seed, given.only or kinds_for(given.metadata)), given.minutes),
        seed=seed,
        rate=given.rate,
        logs=directory,
        small_disk_bytes=(64 << 20) + int(given.minutes * 60 * given.rate * 2.5 * BYTES_PER_RECORD),
        say=say,
    )
    (directory / "report.json").write_text(json.dumps(report.as_json(), indent=2) + "\n")
    print_summary(report)
    for failure in report.failures:
        print(f"torture: FAILED with seed {seed}: {failure}", file=sys.stderr)
    return 1 if report.failures else 0


if __name__ == "__main__":
    raise SystemExit(main())
