"""Run as a program: shows a run of a pipeline as its standard output wants it, told step by step, for tests.

Each line of standard input is ``["event", message]`` or ``["batch", query, rows, milliseconds]``; its end is the run's.
"""

import json
import sys

from skep.cli.spark.pipeline_progress import RunProgress, display_for_stdout


def main() -> None:
    display = display_for_stdout()
    progress = RunProgress(display)
    display.start()
    for line in sys.stdin:
        kind, *values = json.loads(line)
        getattr(progress, kind)(*values)
    display.stop(progress.flows)


if __name__ == "__main__":
    main()
