"""Writing to partitions: batches, partitioner, delivery, transactions."""
