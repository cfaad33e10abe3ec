"""Layer 4: where replicas go and who leads; decisions as pure functions, and the one broker that carries them out."""
