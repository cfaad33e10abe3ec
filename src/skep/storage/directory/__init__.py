"""A data directory: its identity, its checkpoints, and the logs in it."""
