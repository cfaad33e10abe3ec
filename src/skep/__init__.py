"""Skep: a message broker in Python that every Kafka client already speaks to."""
