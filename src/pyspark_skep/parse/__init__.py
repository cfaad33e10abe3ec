"""Schemas and Avro for ``pyspark_skep.parsing``."""
