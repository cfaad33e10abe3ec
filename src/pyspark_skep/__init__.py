"""Topics of Skep, or of any Kafka cluster, as tables of Spark: ``spark.read.format("skep")`` and the three like it.

Nothing has to be registered: Spark looks for packages whose names begin with ``pyspark_`` and takes the
``DefaultSource`` in each. It does so in many short-lived processes, so what is imported here is little; the client,
pyarrow and the compiled kernels are imported by the readers and writers, which need them.
"""

from pyspark_skep.source import DefaultSource

__all__ = ["DefaultSource"]
