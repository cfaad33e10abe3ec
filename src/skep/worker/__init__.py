"""The worker: a process beside the broker for jobs that look into records. It is a Kafka client like any other."""
