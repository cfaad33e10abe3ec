"""The group coordinator: members and what they read, and how far they have read it."""
