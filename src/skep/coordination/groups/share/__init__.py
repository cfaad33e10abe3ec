"""Share groups (KIP-932): members, epochs, the assignment, and the life of the state of their partitions."""
