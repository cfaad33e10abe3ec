"""Compaction of one log: which part is due, and the pass over its records in a helper process."""
