"""Layer 8: the commands; thin, on confluent-kafka's clients, so that they serve any Kafka-compatible cluster."""
