"""The model of consumer groups (KIP-848): members, epochs, target assignment, reconciliation."""
