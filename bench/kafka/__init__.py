"""Skep beside Apache Kafka: the same clients and the same bytes, in turns, in one run."""
