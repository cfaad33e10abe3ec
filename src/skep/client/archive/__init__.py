"""Topics as Parquet files: ``skep archive`` and ``skep replay``."""
