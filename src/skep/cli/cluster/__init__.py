"""``skep cluster``."""
