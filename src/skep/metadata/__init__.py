"""Layer 3: what the cluster agrees on: the store protocol, its implementations, and the topics built above it."""
