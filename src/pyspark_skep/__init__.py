"""Topics of Skep, or of any Kafka cluster, as Spark tables: ``format("skep")`` in reads and writes.

Nothing has to be registered: Spark looks for packages whose names begin with ``pyspark_`` and takes the
``DefaultSource`` of each. It does so in many short-lived processes, so little is imported here. The readers and writers
import the client, pyarrow and the compiled kernels when they need them.
"""

from pyspark_skep.source import DefaultSource

__all__ = ["DefaultSource"]
