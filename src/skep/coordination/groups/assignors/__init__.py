"""The assignors of consumer groups (KIP-848): pure functions from who subscribes to what, to who gets what."""
