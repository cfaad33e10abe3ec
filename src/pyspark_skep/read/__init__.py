"""Reading topics with Spark, as a batch and as a stream."""
