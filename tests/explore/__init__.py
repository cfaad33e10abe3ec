"""Random search over every test that uses Hypothesis: ``python -m tests.explore --minutes 10``."""
