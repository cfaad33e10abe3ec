"""The leader's side of share groups (KIP-932): share partitions, share sessions, and what fetches read."""
