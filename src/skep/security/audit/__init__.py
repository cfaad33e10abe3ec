"""The audit log: who did what, and was it allowed."""
