"""Commands under the names and flags of Kafka's own tools."""
