"""Layer 0: ids, errors, time, tasks, files and option declarations; knows nothing of brokers."""
