"""Measurements behind ``docs/decisions/`` (0002 and 0019); each module is run by itself."""
