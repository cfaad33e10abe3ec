"""CPU time of another process: what tests compare where wall time would also count what else the machine does."""

import time

_CPUCLOCK_SCHED = 2


def cpu_s(pid: int) -> float:
    """The CPU seconds that the process has used so far, all its threads together, to the microsecond."""
    # The id that clock_getcpuclockid(3) gives on Linux.
    return time.clock_gettime((~pid << 3) | _CPUCLOCK_SCHED)
