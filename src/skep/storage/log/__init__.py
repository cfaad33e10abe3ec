"""The log of one partition: appends, reads, truncation, flushes, recovery, retention and swaps of segments."""
