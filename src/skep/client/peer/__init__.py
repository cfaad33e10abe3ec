"""Connections between brokers, on the event loop."""
