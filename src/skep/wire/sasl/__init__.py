"""The messages and the arithmetic of SASL mechanisms, for both sides, without I/O."""
