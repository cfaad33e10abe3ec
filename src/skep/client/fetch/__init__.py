"""Reading partitions: Fetch requests, and a reader that returns Arrow batches."""
