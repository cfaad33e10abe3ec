"""Excludes the imported modules of a Spark Python worker from garbage collection.

Spark's worker collects garbage after every task, before it takes the next one. With pyarrow, numba and pandas imported
a collection visits all their objects, which are never garbage. It took about 80 ms of CPU, and a query over 16 small
partitions spent most of its time there (docs/PERFORMANCE-SPARK.md).
"""

import functools
import gc


@functools.cache
def settle() -> None:
    """Call this at the end of a task, when everything is imported. Only the first call in a process has an effect.

    Objects that are alive at that moment are not visited again. Those that later become part of an unreachable cycle
    are never freed; their number is fixed from here on.
    """
    gc.collect()
    gc.freeze()
