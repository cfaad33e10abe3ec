"""Replication and elections over many interleavings: the brokers' own rules on a model of disk, store and network."""
