"""Share groups (KIP-932): the delivery state of each share partition, and the coordinator that keeps it."""
