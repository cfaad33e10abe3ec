"""``skep pipeline``, and how a command starts Spark."""
