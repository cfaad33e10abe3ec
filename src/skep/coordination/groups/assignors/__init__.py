"""The assignors of consumer groups (KIP-848): pure functions from subscriptions to an assignment."""
