"""What a Python worker of Spark has imported, taken out of the garbage collector's sight.

Spark's worker collects garbage after every task, before it takes the next one. With pyarrow, numba and pandas imported
that is a walk through all their objects, which are never garbage: about 80 ms of CPU, and a query over 16 small
partitions spent most of its time there (docs/PERFORMANCE-SPARK.md).
"""

import functools
import gc


@functools.cache
def settle() -> None:
    """To be called at the end of a task, when all is imported; does something once in a process.

    What is alive then is not looked at again. If it later becomes part of a cycle that nobody needs, it stays: an
    amount that is fixed from here on.
    """
    gc.collect()
    gc.freeze()
