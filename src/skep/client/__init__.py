"""Layer 3: asking brokers from outside, over sockets that block; for commands and tools."""
