"""Measurements behind ``docs/decisions/0002-hot-path.md``; each module is run by itself."""
