"""Writing topics with Spark, exactly once."""
