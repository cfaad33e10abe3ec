"""Layer 2: record batch v2, the one format of wire and disk."""
