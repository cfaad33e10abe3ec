"""Run as a program: shows a run of a pipeline as its standard output wants it, told step by step, for tests.

Each line of standard input is ``["event", message]`` or ``["batch", query, rows in, rows out]``; its end is the run's.
"""

import json
import sys

from skep.cli.spark.pipeline_display import display_for_stdout
from skep.cli.spark.pipeline_progress import MicroBatch, RunProgress


def main() -> None:
    display = display_for_stdout(json="--json" in sys.argv)
    # Time stands still: flows take no seconds.
    progress = RunProgress(display, clock=lambda: 0.0)
    display.start()
    for line in sys.stdin:
        kind, *values = json.loads(line)
        if kind == "event":
            progress.event(*values)
        else:
            progress.batch(MicroBatch(*values))
    progress.end()
    display.ended("completed", "The run is over.", list(progress.flows.values()))
    display.close()


if __name__ == "__main__":
    main()
