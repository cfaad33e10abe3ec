"""Layer 1: the Kafka protocol without any input or output: frames, headers, served versions, encoders."""
