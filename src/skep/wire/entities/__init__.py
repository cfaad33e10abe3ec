"""Readers, bounds checks and encoders that are compiled from the classes of kio."""
