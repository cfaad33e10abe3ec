"""One segment of a log: its batches, its indexes, and their repair."""
