"""Benchmarks that print ratios: each row runs its reference beside it, in the same run. ``python -m bench``."""
