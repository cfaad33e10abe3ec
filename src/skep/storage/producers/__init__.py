"""The idempotent and transactional producers of a log, and their snapshots."""
