"""Runs ``skep`` with the arguments after the first, and kills itself with SIGKILL at a step of its work on the disk.

The first argument is the number of the step: each fsync, rename and folder that is made counts twice, before it is done
and after.
"""

import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from skep.cli.main import call


class Steps:
    def __init__(self, last: int) -> None:
        self.last = last
        self.taken = 0

    def step(self) -> None:
        self.taken += 1
        if self.taken == self.last:
            os.kill(os.getpid(), signal.SIGKILL)

    def counting(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any, **options: Any) -> Any:
            self.step()
            result = function(*arguments, **options)
            self.step()
            return result

        return counted


def main() -> None:
    steps = Steps(int(sys.argv[1]))
    for name in ("fsync", "replace", "mkdir", "unlink"):
        setattr(os, name, steps.counting(getattr(os, name)))
    call(sys.argv[2:])


if __name__ == "__main__":
    main()
