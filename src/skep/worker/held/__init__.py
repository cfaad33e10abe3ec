"""Held topics: records that wait until they are due, and are then written to another topic."""
