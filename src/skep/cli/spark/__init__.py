"""``skep pipeline`` and ``skep sql``."""
