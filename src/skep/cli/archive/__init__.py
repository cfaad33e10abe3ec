"""``skep archive`` and ``skep replay``."""
