"""Fetch requests and responses, encoded and decoded by hand."""
