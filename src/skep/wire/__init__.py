"""Layer 1: the Kafka protocol without I/O: frames, headers, served versions, encoders."""
