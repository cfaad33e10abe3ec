"""Layer 4: a partition as its readers and writers see it: high watermark, acknowledgement, waiting."""
