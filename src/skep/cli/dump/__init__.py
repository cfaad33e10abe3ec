"""``skep dump``."""
