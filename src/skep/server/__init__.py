"""Layer 6: Kafka over TCP: the listener and its connections."""
