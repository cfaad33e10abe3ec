"""``skep topics``."""
