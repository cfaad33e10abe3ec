"""Hostile bytes against a broker that has other clients: ``python -m tests.fuzz SECONDS [SEED]``."""
