"""The options of brokers, topics and groups, each declared once."""
