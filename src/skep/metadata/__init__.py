"""Layer 3: the cluster's metadata: the store protocol, its implementations, and the catalog of topics above it."""
