"""``skep transactions``."""
